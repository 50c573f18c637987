import sqlite3

import pytest

from energymon import Reading, SqliteStore, StoreError, Ticks, joules
from energymon.influx.cursor import BusyError, StoreCursor
from energymon.reading import Baseline, ClockOffset, CounterStart, Event

MS = 1_000_000


@pytest.fixture
def store(tmp_path):
    with SqliteStore.create(tmp_path / "e.sqlite") as store:
        yield store


def reading(k, value, *, late_us=300, node="n", device="package-0"):
    return Reading(k * 100 * MS, k * 100 * MS + late_us * 1000, node, device, "cpu", "rapl-powercap", float(value))


def rows(count=20, **kind):
    return [reading(k, 10 * k, **kind) for k in range(count)]


def test_what_is_appended_is_read_back_exactly(store):
    batch = [*rows(), *rows(device="package-1")]
    for news in ([Event(7, "n", "clock-step", "hop")], []):  # stored once, however often it is appended
        store.append(batch, [Ticks(5, "n", missed=True)], news)
    assert store.readings(0, 2000 * MS) == batch
    assert store.ticks(0, 6) == [Ticks(5, "n", missed=True)]
    assert store.events() == [Event(7, "n", "clock-step", "hop")]


def test_a_reading_whose_tick_and_time_lie_on_either_side_of_an_edge_is_found(store):
    late, early = reading(1, 10, late_us=900), reading(9, 90, late_us=-900)
    store.append([late, early])
    edge = 500_000
    assert store.readings(100 * MS + edge, 900 * MS - edge) == [late, early]


def test_offsets_baselines_and_counters_are_read_back_by_node(store):
    clocks = [ClockOffset(5, "n", "controller", -7, 3), ClockOffset(6, "m", "chrony", 2**40, 1)]
    idle = [Baseline("n", "package-0", "cpu", "estimate", 1, 9, 0.1 + 0.2, None)]
    start = CounterStart(
        "n", "package-0", "cpu", "rapl-powercap", 5, 6, 7, "boot", 0.1, 2**62, 1e-6, 2**40, 9.5, "file"
    )
    for _ in range(2):
        store.append([], news=[*clocks, *idle, start])
    assert store.clocks() == clocks
    assert store.clocks("m") == clocks[1:]
    assert store.baselines("n") == idle
    assert store.baselines("m") == []
    assert store.counters() == [start]
    assert store.counters("m") == []


def sent(store):
    """Acknowledge all that comes; return the ticks of the readings among it, in 100 ms."""
    found = []
    with StoreCursor(store.path) as cursor:
        while (batch := cursor.next_batch()) is not None:
            cursor.acknowledge(batch)
            found += [int(line.rsplit(" ", 1)[1]) // (100 * MS) for line in batch.lines if line.startswith("energy")]
        assert cursor.unsent() == 0
    return found


def test_a_reading_that_is_stored_after_later_ticks_is_sent_too(store):
    store.begin_session("n", 0, 100 * MS, {})
    store.append(rows(5), [Ticks(k * 100 * MS, "n", False) for k in range(8)])
    assert sent(store) == [0, 1, 2, 3, 4]
    store.append([reading(6, 60), reading(8, 80)], [Ticks(800 * MS, "n", False)])
    store.append([reading(3, 30, device="package-1")])
    assert sorted(sent(store)) == [3, 6, 8]
    assert sent(store) == []
    with sqlite3.connect(store.path) as database:
        assert database.execute("SELECT count(*) FROM late").fetchone() == (0,)


def test_a_store_that_nobody_sends_notes_no_late_readings(store):
    store.append(rows(5))
    store.append([reading(3, 30, device="package-1")])
    with sqlite3.connect(store.path) as database:
        assert database.execute("SELECT count(*) FROM late").fetchone() == (0,)


def test_readings_reach_over_both_ends_of_what_is_asked(store):
    store.append(rows())
    found = store.readings(500 * MS, 900 * MS)
    assert [r.tick_ns // (100 * MS) for r in found] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert joules(found, 500 * MS, 900 * MS) == joules(rows(), 500 * MS, 900 * MS)


def test_a_batch_that_fails_leaves_nothing_behind_and_can_be_repeated(store):
    poisoned = [*rows(), Reading(99, 99, "n", "x", "cpu", "estimate", 1.0)]
    refuse = "CREATE TRIGGER t BEFORE INSERT ON readings WHEN NEW.tick_ns = 99 BEGIN SELECT RAISE(ABORT, 'no'); END"
    store._db.execute(refuse)
    with pytest.raises(StoreError, match="no"):
        store.append(poisoned)
    assert len(store.readings(0, 10**12)) == 0
    store.append(rows())
    assert store.readings(0, 10**12) == rows()


def test_a_path_with_awkward_characters_is_only_a_path(tmp_path):
    path = tmp_path / "50% ?mode=memory#x.sqlite"
    with SqliteStore.create(path) as store:
        store.append(rows())
    assert path.stat().st_size > 0


def foreign(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()


def test_a_database_of_another_program_is_not_written_to(tmp_path):
    path = tmp_path / "theirs.sqlite"
    foreign(path)
    for use in (SqliteStore.create, SqliteStore.open):
        with pytest.raises(StoreError, match=rf"{path}: .*another program"):
            use(path)
    assert [row[0] for row in sqlite3.connect(path).execute("SELECT name FROM sqlite_master")] == ["t"]


def test_a_store_has_one_sender_by_whatever_link_it_is_named(tmp_path):
    with SqliteStore.create(tmp_path / "energy.sqlite"):
        pass
    (tmp_path / "link").symlink_to("energy.sqlite")
    with StoreCursor(tmp_path / "energy.sqlite"), pytest.raises(BusyError, match="another sender"):
        StoreCursor(tmp_path / "link")
    with StoreCursor(tmp_path / "link"):
        pass
