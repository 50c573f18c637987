"""The bucket that a store's sender has filled holds what the store has."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon import Reading, SqliteStore, Ticks, joules
from energymon.reading import INTERPOLATED, START, Baseline, ClockOffset, CounterStart, Event
from energymon.sensors.counter import Counter
from tests.energymon.influx.bucket import Bucket
from tests.energymon.influx.server import drain

pytestmark = pytest.mark.process

MS = 1_000_000
T0 = 1_700_000_000_000 * MS
STEP = 100 * MS
SERIES = [("package-0", "cpu", "rapl-perf"), ("package-0", "dram", "rapl-perf"), ("gpu-0", "gpu", "nvml-counter")]
UNIT_J = 6.103515625e-05
WRAP = 2**20
slow = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

names = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" ,=\\%'\"${}"), min_size=1, max_size=12)


def bucket_store(server, bucket):
    return Bucket(server.settings(bucket))


@st.composite
def lives(draw):
    """A node's agents, one after the other: per life its readings and ticks, with wraps, gaps and restarts."""
    found = []
    k = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 3))):
        readings, ticks = [], []
        start_ns = T0 + k * STEP - draw(st.integers(1, STEP - 1))
        chosen = draw(st.lists(st.sampled_from(SERIES), min_size=1, max_size=3, unique=True))
        counters = {s: Counter(unit_j=UNIT_J, wrap=WRAP, max_w=1e6, lag_s=0.001) for s in chosen}
        raw = {series: draw(st.integers(0, WRAP - 1)) for series in chosen}
        gap = False
        for _ in range(draw(st.integers(1, 25))):
            tick_ns = T0 + k * STEP
            k += draw(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 30, 70_000]))
            missed = draw(st.integers(0, 5)) == 0
            seen = chosen[1:] if missed else chosen
            for series in seen:
                raw[series] = (raw[series] + draw(st.integers(1, WRAP // 2))) % WRAP
                t_ns = tick_ns + draw(st.integers(0, 2 * STEP))
                value, flags = counters[series].update(raw[series], tick_ns)
                flags = flags or (INTERPOLATED if gap else "")
                readings.append(Reading(tick_ns, t_ns, "n", *series, value, flags))
            ticks.append(Ticks(tick_ns, "n", missed))
            gap = missed
        found.append((start_ns, readings, ticks))
        k += draw(st.integers(0, 3))
    return found


def fill(path, found, node="n"):
    for i, (start_ns, readings, ticks) in enumerate(found):
        with SqliteStore.create(path) as store:
            session = store.begin_session(node, start_ns, STEP, {"life": i})
            for at in range(0, len(ticks), 5):
                chunk = {tick.first_ns for tick in ticks[at : at + 5]}
                store.append([r for r in readings if r.tick_ns in chunk], ticks[at : at + 5])
            if i % 2 == 0:
                store.end_session(session, ticks[-1].first_ns, 0.1 + i)


def assert_agree(here, there, windows):
    for start_ns, end_ns in windows:
        expected, got = here.readings(start_ns, end_ns), there.readings(start_ns, end_ns)
        assert got == expected
        assert there.ticks(start_ns, end_ns) == here.ticks(start_ns, end_ns)
        for one, other in zip(
            joules(expected, start_ns, end_ns, STEP), joules(got, start_ns, end_ns, STEP), strict=True
        ):
            assert abs(one.joules - other.joules) <= 1e-9
    assert there.sessions() == here.sessions()
    assert there.events() == here.events()
    assert there.clocks() == here.clocks()
    assert there.baselines() == here.baselines()
    assert there.counters() == here.counters()


@slow
@given(data=st.data(), found=lives())
def test_both_stores_answer_alike_whatever_wraps_gaps_and_restarts_there_were(server, data, found):
    bucket = server.bucket()
    last = max(tick.first_ns for *_, ticks in found for tick in ticks)
    instants = st.integers(T0 - STEP, last + 2 * STEP)
    windows = [sorted((data.draw(instants), data.draw(instants))) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "e.sqlite")
        fill(path, found)
        drain(path, server.settings(bucket))
        with SqliteStore.open(path) as here, bucket_store(server, bucket) as there:
            assert_agree(here, there, windows)


@slow
@given(
    st.lists(st.tuples(names, names, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=8),
    st.lists(
        st.tuples(names, st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('\n\r\\"nr'))), max_size=8
    ),
)
def test_names_messages_and_every_float_come_back_exactly(server, measured, told):
    bucket = server.bucket()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "e.sqlite")
        with SqliteStore.create(path) as store:
            for i, (node, device, value) in enumerate(measured):
                store.begin_session(node, T0 + i, STEP, {"host": node})
                store.append(
                    [Reading(T0 + i * STEP, T0 - i, node, device, "cpu", "estimate", value, START)],
                    [Ticks(T0 + i * STEP, node, False)],
                    [
                        *(Event(T0, node, kind, message) for kind, message in told),
                        ClockOffset(T0 - i, node, device, -(2**60) + i, 2**55 + 1),
                        Baseline(node, device, "cpu", "estimate", T0 + i, T0 + 2 * i, value, value if i % 2 else None),
                        CounterStart(
                            *(node, device, "cpu", "estimate", T0 + i * STEP, T0 - i, -i, device, value, 2**63 - 1 - i),
                            *(value, 2**40 + i if i % 2 else None, value, device),
                        ),
                    ],
                )
        drain(path, server.settings(bucket))
        with SqliteStore.open(path) as here, bucket_store(server, bucket) as there:
            assert there.readings(T0, T0 + 10 * STEP) == here.readings(T0, T0 + 10 * STEP)
            assert there.clocks() == here.clocks()
            assert there.baselines() == here.baselines()
            assert there.counters() == here.counters()
            assert there.sessions() == here.sessions()
            for node in {node for node, *_ in measured}:
                assert [e for e in there.events() if e.node == node] == [e for e in here.events() if e.node == node]
                assert there.readings(T0, T0, node) == here.readings(T0, T0, node)


def test_sending_everything_again_changes_nothing(server, bucket, make_store):
    store = make_store()
    readings = [Reading(T0 + k, T0 + k, "n", "package-0", "cpu", "rapl-perf", k / 7) for k in range(50)]
    store.append(readings, [Ticks(r.tick_ns, "n", False) for r in readings], [Event(T0, "n", "k", "m")] * 3)
    drain(store.path, server.settings(bucket))
    store._db.execute("DELETE FROM sent")
    drain(store.path, server.settings(bucket))
    with bucket_store(server, bucket) as there:
        assert_agree(store, there, [(T0, T0 + 100)])


def test_a_tick_that_two_lives_of_one_store_share_is_one_reading(server, bucket, tmp_path):
    shared = Reading(T0 + STEP, T0 + STEP, "n", "package-0", "cpu", "rapl-perf", 1.0)
    first = (T0, [shared], [Ticks(T0 + STEP, "n", False)])
    later = Reading(T0 + 2 * STEP, T0 + 2 * STEP, *SERIES_OF_N, 2.0)
    second = (T0 + 1, [shared, later], [Ticks(T0 + STEP, "n", False)])
    fill(tmp_path / "e.sqlite", [first, second])
    drain(tmp_path / "e.sqlite", server.settings(bucket))
    with SqliteStore.open(tmp_path / "e.sqlite") as here, bucket_store(server, bucket) as there:
        assert_agree(here, there, [(T0, T0 + 3 * STEP)])


SERIES_OF_N = ("n", "package-0", "cpu", "rapl-perf")
