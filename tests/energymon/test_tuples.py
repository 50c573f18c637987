import pytest

from energymon import INTERPOLATED, START, Reading, SqliteStore, WindowError
from energymon.analysis.tuples import stored_tuples, tuples

MS = 1_000_000
TICK = 100 * MS
S = 1000 * MS


def reading(tick, value, *, late_us=0, flags="", device="package-0", domain="cpu", source="rapl-perf", node="n"):
    return Reading(tick * TICK, tick * TICK + late_us * 1000, node, device, domain, source, float(value), flags)


def ramp(watts, first=0, last=20, **kind):
    return [reading(k, watts * 0.1 * (k - first), **kind) for k in range(first, last + 1)]


def host(first=0, last=20, node="n"):
    kind = {"first": first, "last": last, "node": node}
    return [
        *ramp(50, **kind),
        *ramp(40, device="package-1", **kind),
        *ramp(10, domain="dram", **kind),
        *ramp(5, domain="dram", device="package-1", **kind),
        *ramp(300, domain="gpu", device="gpu-0", source="nvml-counter", **kind),
        *ramp(290, domain="gpu", device="gpu-0", source="nvml-power", **kind),
    ]


def test_each_tick_has_the_joules_since_the_one_before_summed_over_devices():
    found = list(tuples(host(), 0, 2 * S, TICK))
    assert [t.t_ns for t in found] == [k * TICK for k in range(1, 21)]
    for t in found:
        assert (t.cpu_energy, t.memory_energy, t.gpu_energy) == pytest.approx((9.0, 1.5, 30.0))
        assert (t.cpu_source, t.memory_source, t.gpu_source) == ("rapl-perf", "rapl-perf", "nvml-counter")
        assert (t.node, t.flags) == ("n", "")


def test_joules_are_those_at_the_ticks_and_not_at_the_readings():
    rows = [reading(k, 100.0 * (k + 0.4 * (k % 2)), late_us=40_000 * (k % 2)) for k in range(10)]
    found = list(tuples(rows, 0, 9 * TICK, TICK))
    assert [t.cpu_energy for t in found] == pytest.approx([100.0] * len(found))


def test_edges_off_the_grid_leave_only_whole_ticks():
    assert [t.t_ns // TICK for t in tuples(host(), 5 * TICK + 1, 9 * TICK - 1, TICK)] == [7, 8]
    assert list(tuples(host(), 5 * TICK + 1, 6 * TICK + 1, TICK)) == []


def test_a_domain_that_nothing_measures_is_unknown_and_not_zero():
    for t in tuples(ramp(50), 0, S, TICK):
        assert (t.memory_energy, t.gpu_energy) == (None, None)
        assert (t.memory_source, t.gpu_source) == ("", "")


def test_a_domain_of_which_a_device_is_lost_is_unknown_from_then_on():
    rows = [r for r in host() if not (r.device == "gpu-0" and r.tick_ns > 10 * TICK)]
    found = {t.t_ns // TICK: t for t in tuples(rows, 0, 2 * S, TICK)}
    assert found[10].gpu_energy == pytest.approx(30.0)
    assert found[11].gpu_energy is None
    assert found[11].cpu_energy == pytest.approx(9.0)


def test_the_next_source_of_a_device_stands_in_where_the_best_is_lost():
    rows = [r for r in host() if not (r.source == "nvml-counter" and r.tick_ns > 10 * TICK)]
    found = {t.t_ns // TICK: t for t in tuples(rows, 0, 2 * S, TICK)}
    assert (found[10].gpu_energy, found[10].gpu_source) == (pytest.approx(30.0), "nvml-counter")
    assert (found[11].gpu_energy, found[11].gpu_source) == (pytest.approx(29.0), "nvml-power")


def test_a_device_that_is_expected_and_never_read_makes_its_domain_unknown():
    expected = {"n": [("package-0", "cpu"), ("package-1", "cpu")]}
    (first, *_) = tuples([*ramp(50), *ramp(5, domain="gpu", device="gpu-0")], 0, S, TICK, None)
    assert first.cpu_energy == pytest.approx(5.0)
    assert list(tuples(ramp(50), 0, S, TICK, expected)) == []


def test_an_estimate_is_labelled_and_is_not_added_to_what_is_measured():
    estimate = ramp(70, device="cpu", source="estimate")
    (alone, *_) = tuples(estimate, 0, S, TICK)
    assert (alone.cpu_energy, alone.cpu_energy_estimate, alone.cpu_source) == (None, pytest.approx(7.0), "estimate")
    (both, *_) = tuples([*estimate, *ramp(50)], 0, S, TICK)
    assert (both.cpu_energy, both.cpu_source) == (pytest.approx(5.0), "rapl-perf")


def test_ticks_in_a_gap_are_flagged_and_conserve_energy():
    rows = [r for r in ramp(100) if not 4 * TICK < r.tick_ns < 8 * TICK]
    found = {t.t_ns // TICK: t for t in tuples(rows, 0, 2 * S, TICK)}
    assert [k for k, t in found.items() if t.flags == INTERPOLATED] == [5, 6, 7, 8]
    assert sum(t.cpu_energy for t in found.values()) == pytest.approx(200.0)


def test_no_tuple_reaches_across_a_restart():
    rows = [*ramp(100, last=10), reading(11, 0.0, flags=START), *(reading(k, 10.0 * (k - 11)) for k in range(12, 21))]
    assert [t.t_ns // TICK for t in tuples(rows, 0, 2 * S, TICK)] == [*range(1, 11), *range(12, 21)]


def sensors(*channels):
    return {
        "sensors": [
            {"sensor": "x", "channels": [dict(zip(("device", "domain", "source"), c, strict=True)) for c in channels]}
        ]
    }


def test_each_session_of_a_store_has_its_own_interval_and_devices(tmp_path):
    estimate = [reading(k, 7.0 * k, device="cpu", source="estimate", flags=START if not k else "") for k in range(11)]
    with SqliteStore.create(tmp_path / "energy.sqlite") as store:
        store.begin_session("n", 0, TICK, sensors(("cpu", "cpu", "estimate")))
        store.append(estimate)
        store.begin_session("n", 2 * S, 2 * TICK, sensors(("package-0", "cpu", "rapl-perf")))
        store.append([reading(k, 5.0 * (k - 22), flags=START if k == 22 else "") for k in range(22, 41, 2)])
    with SqliteStore.open(tmp_path / "energy.sqlite") as store:
        found = list(stored_tuples(store, 0, 2**63 - 1))
        assert list(stored_tuples(store, 0, 5 * TICK)) == found[:5]
        with pytest.raises(WindowError, match=r"'m'.* n"):
            list(stored_tuples(store, 0, S, "m"))
    assert [(t.t_ns // TICK, t.cpu_source) for t in found] == [
        *((k, "estimate") for k in range(1, 11)),
        *((k, "rapl-perf") for k in range(24, 41, 2)),
    ]
    either = [t.cpu_energy or t.cpu_energy_estimate for t in found]
    assert either == pytest.approx([7.0] * 10 + [10.0] * 9)
    assert [t.cpu_energy is None for t in found] == [True] * 10 + [False] * 9
