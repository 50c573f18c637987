"""Windows across a restart of the agent: summed by the hardware's counter where nothing can hide between its lives."""

import time

import pytest

from energymon import Reading, SqliteStore, query
from energymon.agent.window import Agent
from energymon.analysis.restarts import bridged, restarts
from energymon.reading import START, CounterStart, Session
from energymon.sensors.perf import Reference

S = 1_000_000_000
RANGE_UJ = 262_143_328_850


def session(start_s, **description):
    return Session(f"{start_s}", "n", round(start_s * S), None, S // 10, None, description)


def reading(t_s, joules, flags=""):
    return Reading(round(t_s * S), round(t_s * S), "n", "package-0", "cpu", "rapl-powercap", joules, flags)


def counter(t_s, raw, *, joules=0.0, wrap=RANGE_UJ, max_w=300.0, boot="boot", name="energy_uj", unit_j=1e-6):
    t_ns = round(t_s * S)
    fixed = ("n", "package-0", "cpu", "rapl-powercap", t_ns, t_ns, t_ns, boot, joules)
    return CounterStart(*fixed, raw, unit_j, wrap, max_w, name)


READINGS = [reading(10, 0.0, START), reading(11, 100.0), reading(14, 0.0, START), reading(15, 100.0)]
SESSIONS = [session(9.9), session(13.9)]
BEGUN = counter(10, 5_000_000)


def test_what_was_used_while_no_agent_ran_is_the_difference_of_the_counter():
    starts = [BEGUN, counter(14, 405_000_000)]
    assert [r.joules for r in bridged(READINGS, starts, SESSIONS)] == pytest.approx([0, 100, 400, 500])
    assert [r.flags for r in bridged(READINGS, starts, SESSIONS)] == [START, "", "", ""]
    (told,) = restarts(READINGS, starts, SESSIONS)
    assert (told.kind, told.t_ns) == ("agent-restart", 14 * S)
    assert "after 3.000 s" in told.message
    assert "package-0 cpu" in told.message


def test_lives_of_one_reading_are_bridged_one_after_the_other():
    rows = [READINGS[0], *(reading(t_s, 0.0, START) for t_s in (14, 18, 22))]
    starts = [BEGUN, *(counter(t_s, 5_000_000 + (t_s - 10) * 100_000_000) for t_s in (14, 18, 22))]
    sessions = [session(9.9), session(13.9), session(17.9), session(21.9)]
    assert [r.joules for r in bridged(rows, starts, sessions)] == pytest.approx([0, 400, 800, 1200])
    assert [event.t_ns for event in restarts(rows, starts, sessions)] == [14 * S, 18 * S, 22 * S]


def test_one_wrap_in_between_is_counted():
    starts = [BEGUN._replace(raw=RANGE_UJ - 150_000_000), counter(14, 250_000_000)]
    assert [r.joules for r in bridged(READINGS, starts, SESSIONS)] == pytest.approx([0, 100, 400, 500])


@pytest.mark.parametrize(
    ("starts", "sessions", "why"),
    [
        ([BEGUN], SESSIONS, "not stored"),
        ([counter(14, 405_000_000)], SESSIONS, "not stored"),
        ([BEGUN, counter(14, 405_000_000, boot="another")], SESSIONS, "booted in between"),
        ([BEGUN, counter(14, 405_000_000, name="other")], SESSIONS, "counter is another"),
        ([BEGUN, counter(14, 405_000_000, max_w=90_000.0)], SESSIONS, "may have wrapped"),
        ([BEGUN, counter(14, 50_000_000)], SESSIONS, "not possible"),
        ([BEGUN, counter(14, 2_000_000_000)], SESSIONS, "not possible"),
        ([BEGUN, counter(14, 405_000_000)], [session(9.9, asleep_ns=0), session(13.9, asleep_ns=S)], "suspended"),
        ([BEGUN._replace(wrap=None), counter(14, 405_000_000, wrap=None)], SESSIONS, "reset in between"),
        ([counter(10, 10**10, wrap=None), counter(14, 10**9, wrap=None)], SESSIONS, "reset in between"),
    ],
)
def test_where_something_may_hide_the_figure_is_unknown_and_the_reason_told(starts, sessions, why):
    assert bridged(READINGS, starts, sessions) == READINGS
    (told,) = restarts(READINGS, starts, sessions)
    assert told.kind == "restart-unknown"
    assert why in told.message


def test_a_counter_that_does_not_wrap_is_bridged_when_it_has_counted_more_than_a_reset_could_hide():
    starts = [counter(10, 10**10, wrap=None), counter(14, 10**10 + 400_000_000, wrap=None)]
    assert [r.joules for r in bridged(READINGS, starts, SESSIONS)] == pytest.approx([0, 100, 400, 500])


def test_a_counter_that_began_again_in_an_agents_life_is_not_bridged():
    starts = [BEGUN, counter(14, 405_000_000, joules=100.0)]
    rows = [*READINGS[:2], reading(14, 100.0, START), reading(15, 200.0)]
    assert bridged(rows, starts, SESSIONS[:1]) == rows
    assert restarts(rows, starts, SESSIONS[:1]) == []


def run(sysfs, store, *options):
    return Agent(store, node="n", interval_ms=20, options=("--sysfs", str(sysfs), "--nvml", "/none.so", *options))


@pytest.mark.process
@pytest.mark.usefixtures("perf_allowed")
def test_perf_which_counts_from_its_opening_is_bridged_by_powercap(plant, tmp_path):
    tree, store = plant("intel-one-socket"), tmp_path / "energy.sqlite"
    tree.pmu()
    with tree.running():
        with run(tree.root, store):
            began_ns, began = time.time_ns(), time.monotonic()
            time.sleep(0.3)
        time.sleep(0.5)
        with run(tree.root, store):
            time.sleep(0.3)
            ended_ns, seconds = time.time_ns(), time.monotonic() - began
            time.sleep(0.1)
    with SqliteStore.open(store) as opened:
        (found,) = query(opened, began_ns, ended_ns)
    (total,) = [c for c in found.components if c.name == "total"]
    assert total.sources == ("rapl-perf",)
    # The tree's powercap shows what it drew up to a step of its own late.
    assert total.joules == pytest.approx(31 * seconds, abs=total.error_j + 31 * 0.03)


@pytest.mark.parametrize(
    ("range_uj", "ratio"), [(RANGE_UJ, 61035 / 61035.15625), (65_712_999_613, 15300 / 15258.7890625)]
)
def test_powercaps_microjoules_are_taken_for_what_perf_counts_of_the_same_register(tmp_path, range_uj, ratio):
    (tmp_path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    (tmp_path / "energy_uj").write_text("2000000\n")
    shown = Reference(tmp_path).started(lambda: 2**32 * 5, 2**32 * 4, 2**-32)
    assert shown.unit_j == pytest.approx(1e-6 / ratio, rel=1e-12)
    assert shown.raw == pytest.approx(2_000_000 - 1e6 * ratio, abs=1)
    assert Reference(tmp_path).started(lambda: 0, 1, 2**-32) is None
    (tmp_path / "max_energy_range_uj").write_text("1000\n")
    with pytest.raises(ValueError):
        Reference(tmp_path)
