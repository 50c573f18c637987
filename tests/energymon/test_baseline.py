import pytest

from energymon import Baseline, Reading, WindowError, joules
from energymon.analysis.integrate import baseline_of, baselines_at, net

MS = 1_000_000
S = 1000 * MS


def ramp(watts, *, device="package-0", domain="cpu", source="rapl-perf", count=41):
    return [Reading(100 * MS * k, 100 * MS * k, "n", device, domain, source, watts * 0.1 * k) for k in range(count)]


def baseline(watts, end_s, error_w=0.5, device="package-0"):
    return Baseline("n", device, "cpu", "rapl-perf", (end_s - 1) * S, end_s * S, watts, error_w)


def test_the_idle_power_of_every_series_is_its_joules_over_the_span():
    rows = [*ramp(30.0), *ramp(8.0, domain="dram"), *ramp(5.0, device="cpu", source="estimate")]
    found = {(b.device, b.domain): b for b in baseline_of(rows, S, 3 * S)}
    assert found["package-0", "cpu"].watts == pytest.approx(30.0)
    assert found["package-0", "cpu"].error_w == pytest.approx(30 * 0.1 / 2)
    assert found["package-0", "dram"].watts == pytest.approx(8.0)
    assert found["cpu", "cpu"].error_w is None
    assert (found["cpu", "cpu"].start_ns, found["cpu", "cpu"].end_ns) == (S, 3 * S)


def test_an_idle_span_without_length_is_refused():
    with pytest.raises(WindowError, match="no length"):
        baseline_of(ramp(1.0), S, S)


def test_net_is_gross_less_the_idle_power_over_the_windows_length_and_errors_add_up():
    energies = joules([*ramp(100.0), *ramp(20.0, device="package-1"), *ramp(20.0, domain="dram")], S, 3 * S)
    used, unknown, idle = net(energies, [baseline(30.0, 0), baseline(30.0, 0, device="package-1")], 2.0)
    assert (used.device, used.idle_j, used.net_j) == ("package-0", pytest.approx(60.0), pytest.approx(140.0))
    assert used.net_error_j == pytest.approx(used.error_j + 1.0)
    assert (idle.device, idle.net_j) == ("package-1", pytest.approx(-20.0))
    assert (unknown.idle_j, unknown.net_j, unknown.net_error_j) == (None, None, None)


def test_an_estimates_net_has_no_bound():
    rows = ramp(20.0, source="estimate")
    (found,) = net(joules(rows, S, 3 * S), baseline_of(rows, 0, S), 2.0)
    assert (found.net_j, found.net_error_j) == (pytest.approx(0.0), None)


def test_the_baseline_of_a_window_is_the_last_before_it_or_else_the_first_after():
    recorded = [baseline(30.0, 10), baseline(31.0, 20), baseline(32.0, 30)]
    assert [b.watts for b in baselines_at(recorded, 25 * S)] == [31.0]
    assert [b.watts for b in baselines_at(recorded, 30 * S)] == [32.0]
    assert [b.watts for b in baselines_at(recorded, 5 * S)] == [30.0]
    assert baselines_at([], 5 * S) == []
