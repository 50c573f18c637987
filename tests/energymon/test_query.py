import json
import random

import pytest

from energymon import INTERPOLATED, START, Baseline, ClockOffset, Event, Reading, SqliteStore, Ticks, WindowError, query
from energymon.analysis.query import to_json, total
from energymon.cli.query import render

MS = 1_000_000
TICK = 100 * MS
S = 1000 * MS
T0 = 1_700_000_000 * S
"""A whole second."""


def ramp(watts, *, node="n", device="package-0", domain="cpu", source="rapl-perf", last=100, first=0):
    return [
        Reading(T0 + k * TICK, T0 + k * TICK, node, device, domain, source, watts * 0.1 * (k - first))
        for k in range(first, last + 1)
    ]


def channel(device, domain, source, **more):
    return {"device": device, "domain": domain, "source": source, **more}


CPU = channel("package-0", "cpu", "rapl-perf", lag_s=0.001)
GPU = [channel("gpu-0", "gpu", "nvml-counter", lag_s=0.02), channel("gpu-0", "gpu", "nvml-power", lag_s=0.1)]


def host(node="n"):
    return [
        *ramp(50, node=node),
        *ramp(300, node=node, device="gpu-0", domain="gpu", source="nvml-counter"),
        *ramp(290, node=node, device="gpu-0", domain="gpu", source="nvml-power"),
    ]


@pytest.fixture
def make_store(tmp_path):
    """Write a store with one session a node, and open it for reading."""
    opened = []

    def make(readings, channels=(CPU, *GPU), nodes=("n",), **more):
        path = tmp_path / f"{len(opened)}.sqlite"
        with SqliteStore.create(path) as store:
            for node in nodes:
                store.begin_session(node, T0 - S, TICK, {"sensors": [{"sensor": "x", "channels": list(channels)}]})
            ticks = [Ticks(T0 + k * TICK, node, False) for node in nodes for k in range(101)]
            store.append(readings, more.pop("ticks", ticks), **more)
        opened.append(SqliteStore.open(path))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def by_name(window):
    return {component.name: component for component in window.components}


def test_every_component_has_its_best_source_and_the_total_their_sum(make_store):
    (window,) = query(make_store(host()), T0 + S, T0 + 3 * S)
    found = by_name(window)
    assert {name: c.joules for name, c in found.items()} == pytest.approx({"cpu": 100, "gpu": 600, "total": 700})
    assert {name: c.sources for name, c in found.items()} == {
        "cpu": ("rapl-perf",),
        "gpu": ("nvml-counter",),
        "total": ("rapl-perf", "nvml-counter"),
    }
    assert len(window.energies) == 3
    assert [e.source for e in window.best] == ["rapl-perf", "nvml-counter"]
    assert found["total"].error_j == pytest.approx(found["cpu"].error_j + found["gpu"].error_j)


def test_the_period_that_was_probed_bounds_the_error(make_store):
    (window,) = query(make_store(host()), T0 + S + 85 * MS, T0 + 3 * S + 85 * MS)
    errors = {e.source: e.error_j for e in window.energies}
    # 15 ms are left to the next reading: enough for RAPL, but the board's counter may show it one later.
    assert errors == {
        "rapl-perf": pytest.approx(50 * (0.085 + 0.015)),
        "nvml-counter": pytest.approx(300 * (0.085 + 0.115)),
        "nvml-power": None,
    }


def test_a_component_of_which_a_device_is_lost_is_unknown_and_so_is_the_total(make_store):
    rows = [r for r in host() if not (r.domain == "gpu" and r.tick_ns > T0 + 2 * S)]
    (window,) = query(make_store(rows), T0 + S, T0 + 3 * S)
    found = by_name(window)
    assert found["cpu"].joules == pytest.approx(100)
    assert (found["gpu"].joules, found["total"].joules) == (None, None)
    assert found["total"].lost == total([window]).lost == ("gpu-0 gpu",)


def test_an_estimate_is_told_and_has_no_bound(make_store):
    rows = [*ramp(20, device="cpu", source="estimate"), *ramp(300, device="gpu-0", domain="gpu", source="nvml-counter")]
    (window,) = query(make_store(rows, [channel("cpu", "cpu", "estimate"), GPU[0]]), T0 + S, T0 + 3 * S)
    found = by_name(window)
    assert (found["cpu"].estimated, found["gpu"].estimated, found["total"].estimated) == (True, False, True)
    assert (found["cpu"].error_j, found["total"].error_j) == (None, None)
    assert found["gpu"].error_j is not None
    text = render([window])
    assert "estimate" in text


def test_net_joules_are_those_beyond_the_recorded_baseline(make_store):
    idle = [
        Baseline("n", "package-0", "cpu", "rapl-perf", T0, T0 + S // 2, 20.0, 0.5),
        Baseline("n", "gpu-0", "gpu", "nvml-counter", T0, T0 + S // 2, 60.0, 1.0),
    ]
    store = make_store(host(), news=idle)
    assert by_name(query(store, T0 + S, T0 + 3 * S)[0])["total"].net_j is None
    (window,) = query(store, T0 + S, T0 + 3 * S, net=True)
    found = by_name(window)
    assert {name: c.net_j for name, c in found.items()} == pytest.approx({"cpu": 60, "gpu": 480, "total": 540})
    assert found["total"].idle_j == pytest.approx(160)
    assert found["total"].net_error_j == pytest.approx(found["total"].error_j + 3.0)


def test_a_window_in_the_controllers_time_is_moved_into_each_nodes_clock(make_store):
    # At 100 ms of the node's time a second begins in which it draws 250 W.
    rows, joules = [], 0.0
    for k in range(101):
        rows.append(Reading(T0 + k * TICK, T0 + k * TICK, "n", "package-0", "cpu", "rapl-perf", joules))
        joules += 25.0 if 20 <= k < 30 else 5.0
    offset = ClockOffset(T0, "n", "controller", 50 * MS, 200_000)
    store = make_store(rows, [CPU], news=[offset])
    (window,) = query(store, T0 + 2 * S + 50 * MS, T0 + 3 * S + 50 * MS)
    assert window.clock == "controller"
    assert window.offset_ns == 50 * MS
    assert window.energies[0].joules == pytest.approx(250.0)
    assert window.energies[0].clock_error_j == pytest.approx(2 * 250 * window.clock_error_ns / 1e9)
    assert 200_000 < window.clock_error_ns < 600_000
    (own,) = query(store, T0 + 2 * S + 50 * MS, T0 + 3 * S + 50 * MS, clock="own")
    assert own.energies[0].joules == pytest.approx(240.0)
    assert own.energies[0].clock_error_j == 0.0
    assert "controller's clock" in render([window])
    assert "its own clock" in render([own])


@pytest.mark.parametrize(
    ("step_s", "span_s", "joules", "kinds"),
    [
        # Set back by 3 s at 5 s: the instants from 2 s to 5 s were twice.
        (-3, (1.0, 1.5), 175, []),
        (-3, (1.0, 4.0), None, ["clock-ambiguous"]),
        (-3, (5.5, 6.5), 350, []),
        # Set ahead: those from 5 s to 8 s never were.
        (3, (4.0, 6.0), 350, ["clock-step"]),
        (3, (9.0, 10.0), 350, []),
    ],
)
def test_a_query_follows_a_wall_clock_that_was_set_and_an_instant_that_was_twice_gives_no_figure(
    make_store, step_s, span_s, joules, kinds
):
    clocks = [ClockOffset(T0, "n", "wall", 0, 0), ClockOffset(T0 + 5 * S, "n", "wall", step_s * S, 0)]
    start, end = (T0 + round(at_s * S) for at_s in span_s)
    (window,) = query(make_store(host(), news=clocks), start, end)
    assert by_name(window)["total"].joules == (None if joules is None else pytest.approx(joules))
    assert [event.kind for event in window.events] == kinds
    assert (window.start_ns, window.end_ns) == (start, end)


def test_several_nodes_have_a_window_each_and_a_total(make_store):
    offset = ClockOffset(T0, "n", "controller", 0, 100_000)
    store = make_store([*host("m"), *host("n"), *host("o")], nodes=("m", "n", "o"), news=[offset])
    windows = query(store, T0 + S, T0 + 3 * S, ["n", "m"])
    assert [(w.node, w.clock, w.clock_error_ns is None) for w in windows] == [
        ("m", "unknown", True),
        ("n", "controller", False),
    ]
    assert total(windows).joules == pytest.approx(1400)
    assert len(query(store, T0 + S, T0 + 3 * S)) == 3
    text = render(windows)
    assert "all 2 nodes" in text
    assert "clock offset" in text
    together = json.loads(json.dumps(to_json(windows)))
    assert together["total"]["joules"] == pytest.approx(1400)


def test_a_node_that_is_not_there_is_named_with_those_that_are(make_store):
    with pytest.raises(WindowError, match=r"'x'.* n"):
        query(make_store(host()), T0, T0 + S, "x")


def test_the_table_shows_components_series_and_events(make_store):
    told = [Event(T0 + 2 * S, "n", "sensor-lost", "gpu-0 gpu (nvml-power): gone"), Event(T0, "n", "x", "before")]
    (window,) = query(make_store(host(), news=told), T0 + S, T0 + 3 * S)
    lines = render([window]).splitlines()
    assert lines[0].startswith("n: 2023-11-14T22:13:21.000000Z to 2023-11-14T22:13:23.000000Z, 2.000000 s, its own")
    rows = [line.split() for line in lines]
    assert ["cpu", "100.000", "5.000", "5.000", "0.000", "unknown", "0.00%", "rapl-perf"] in rows
    unknown = ["none", "none", "none", "unknown", "0.00%"]
    assert ["gpu", "gpu-0", "580.000", *unknown, "nvml-power", "(not", "summed)"] in rows
    assert "sensor-lost: gpu-0" in lines[-1]
    assert len({line.index("rapl-perf") for line in lines[2:3]}) == 1


def test_a_window_that_no_series_covers_says_so(make_store):
    (window,) = query(make_store(host(), ()), T0 + 200 * S, T0 + 300 * S)
    assert window.components == ()
    assert "no series" in render([window])
    assert query(make_store(host()), T0 - 100 * S, T0 - 50 * S) == []
    assert "no agent" in render([])


def test_a_window_that_is_covered_in_part_says_which_and_that_part_has_a_figure(make_store):
    gpu = [r for r in host() if r.domain != "gpu" or r.tick_ns <= T0 + 8 * S]
    for start, end, first, last in (
        (T0 - 60 * S, T0 + 3 * S, T0, T0 + 3 * S),
        (T0 + 3 * S, T0 + 60 * S, T0 + 3 * S, T0 + 10 * S),
        (T0 - 60 * S, T0 + 60 * S, T0, T0 + 10 * S),
    ):
        store = make_store(host())
        (window,) = query(store, start, end)
        assert window.covered == ((first, last),)
        (part,) = query(store, *window.covered[0])
        assert by_name(part)["total"].joules == pytest.approx(350 * (last - first) / S)
        assert part.covered == ()
    (window,) = query(make_store(gpu), T0 + S, T0 + 9 * S)
    assert window.covered == ((T0 + S, T0 + 8 * S),), "a series that ends within it ends the part"
    text = render([window])
    assert "readings go from 2023-11-14T22:13:21.000000Z to 2023-11-14T22:13:28.000000Z" in text
    (window,) = query(make_store(host()), T0 + 200 * S, T0 + 300 * S)
    assert window.covered == ()
    assert "there are no readings in it" in render([window])


def test_a_counter_that_started_again_cuts_a_window_into_parts_that_have_figures(make_store):
    restart = T0 + 7 * S
    rows = [r for r in ramp(50) if not T0 + 5 * S < r.tick_ns < restart]
    rows = [r._replace(flags=START) if r.tick_ns == restart else r for r in rows]
    store = make_store(rows, [CPU], news=[Event(restart, "n", "counter-restart", "not read for 2.0 s")])
    (window,) = query(store, T0 + S, T0 + 9 * S)
    assert by_name(window)["total"].joules is None
    assert window.covered == ((T0 + S, T0 + 5 * S), (restart, T0 + 9 * S))
    for (first, last), joules in zip(window.covered, (200, 100), strict=True):
        (part,) = query(store, first, last)
        assert by_name(part)["total"].joules == pytest.approx(joules)


def test_net_joules_without_a_baseline_are_told_to_be_gross(make_store):
    store = make_store(host(), news=[Baseline("n", "package-0", "cpu", "rapl-perf", T0, T0 + S, 20.0, 0.5)])
    gross = render(query(store, T0 + S, T0 + 3 * S))
    assert "idle" not in gross
    net = render(query(store, T0 + S, T0 + 3 * S, net=True))
    assert "no idle baseline of gpu-0 gpu" in net
    assert "package-0 cpu before" not in net
    (total_row,) = [line.split() for line in net.splitlines() if line.startswith("  total")]
    assert total_row[7:10] == ["unknown", "unknown", "unknown"]
    (unread,) = query(make_store(host()), T0 + S, T0 + 3 * S, net=True)
    assert "no idle baseline of package-0 cpu, gpu-0 gpu" in render([unread])


def test_many_events_of_a_kind_are_shown_by_the_first_and_the_last(make_store):
    told = [Event(T0 + S + k, "n", "sensor-slow", f"number {k}") for k in range(1000)]
    told.append(Event(T0 + 2 * S, "n", "sensor-lost", "gpu-0"))
    (window,) = query(make_store(host(), news=told), T0 + S, T0 + 3 * S)
    lines = [line for line in render([window]).splitlines() if "sensor-" in line]
    assert [line.partition(": ")[2] or line.strip() for line in lines] == [
        *(f"number {k}" for k in range(5)),
        "... 994 more sensor-slow",
        "number 999",
        "gpu-0",
    ]
    assert len(window.events) == 1001


@pytest.mark.parametrize("seed", range(6))
def test_a_long_window_is_the_same_without_the_readings_between_its_edges(make_store, seed):
    """Ticks without an interval do not follow each other for sure: then every reading is read."""
    dice = random.Random(seed)
    count = 3000
    channels = [CPU, channel("gpu-0", "gpu", "nvml-counter", lag_s=0.02)]
    gaps = [(dice.randrange(count), dice.randrange(1, 9)) for _ in range(dice.randrange(8))]
    missed = {first + k for first, ticks in gaps for k in range(ticks)}
    starts = {dice.randrange(count) for _ in range(dice.randrange(2))}
    rows = []
    for one in channels:
        joules = 0.0
        for k in range(count):
            joules += dice.uniform(1, 30)
            if k not in missed or (one is CPU and dice.random() < 0.5):
                t_ns = T0 + k * TICK
                at = (t_ns, t_ns + dice.randrange(MS), "n", one["device"], one["domain"], one["source"])
                flag = START if k in starts else INTERPOLATED if k - 1 in missed else ""
                rows.append(Reading(*at, joules, flag, 20 * MS, dice.randrange(MS)))
    grid = range(T0, T0 + count * TICK, TICK)
    every = make_store(rows, channels, ticks=[Ticks(t, "n", k in missed) for k, t in enumerate(grid)])
    edges = make_store(rows, channels, ticks=[Ticks(t, "n", k in missed, 1, TICK) for k, t in enumerate(grid)])
    for _ in range(20):
        start, end = sorted(T0 + dice.randrange(count * TICK) for _ in range(2))
        (one,), (other,) = (query(store, start, end) for store in (every, edges))
        assert one.missed_share == other.missed_share
        assert len(one.energies) == len(other.energies)
        for a, b in zip(one.energies, other.energies, strict=True):
            assert (a.device, a.interpolated) == (b.device, b.interpolated)
            assert b.joules == pytest.approx(a.joules, rel=1e-12, abs=1e-9)
            assert b.error_j == pytest.approx(a.error_j, rel=1e-12)
            assert b.interpolated_share == pytest.approx(a.interpolated_share, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("count", [10_000, 40_000])
def test_what_is_read_for_a_window_does_not_grow_with_its_length(make_store, monkeypatch, count):
    store = make_store(ramp(50, last=count), [CPU], ticks=[Ticks(T0, "n", False, count + 1, TICK)])
    read = []
    readings = SqliteStore.readings
    monkeypatch.setattr(SqliteStore, "readings", lambda *a: read.append(found := readings(*a)) or found)
    (window,) = query(store, T0 + 50 * MS, T0 + (count - 3) * TICK)
    assert window.energies[0].joules == pytest.approx(50 * 0.1 * (count - 3.5), rel=1e-9)
    assert window.missed_share == 0
    assert sum(map(len, read)) < 500


def test_ticks_that_follow_each_other_are_one_row_and_later_ones_alone_are_added(tmp_path):
    with SqliteStore.create(tmp_path / "t.sqlite") as store:
        store.begin_session("n", T0, TICK, {})
        for k, missed in ((0, False), (1, False), (1, False), (2, True), (3, False), (2, False), (4, False)):
            store.append([], [Ticks(T0 + k * TICK, "n", missed, 1, TICK)])
        assert store.ticks(0, 2**62) == [
            Ticks(T0, "n", False, 2, TICK),
            Ticks(T0 + 2 * TICK, "n", True, 1, TICK),
            Ticks(T0 + 3 * TICK, "n", False, 2, TICK),
        ]
        store.begin_session("n", T0 + 5 * TICK, TICK, {})
        store.append([], [Ticks(T0 + 5 * TICK, "n", False, 1, TICK)])
        assert [t.count for t in store.ticks(T0 + 4 * TICK, 2**62)] == [2, 1]
