"""Whatever wraps, is missed, starts anew or is split: joules are the counter's, no more and no less."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energymon import START, Reading, SqliteStore, joules
from energymon.analysis.curve import curves
from energymon.analysis.integrate import Integral
from energymon.analysis.tuples import stored_tuples, tuples
from energymon.sensors.counter import Counter

MS = 1_000_000
TICK = 100 * MS
UNIT_J = 1e-6
RANGE = 30_000_000
"""Counts until the counter wraps: 30 J, which is a third of a second at 90 W."""


@dataclass
class Run:
    """Readings of one counter, and what it truly counted at each."""

    readings: list[Reading]
    counts: list[int]

    def lives(self):
        """Yield the indices of the first and the last reading of each life."""
        starts = [i for i, r in enumerate(self.readings) if r.flags == START]
        for begin, end in pairwise([*starts, len(self.readings)]):
            yield begin, end - 1


@st.composite
def runs(draw, device="package-0", domain="cpu", max_size=40):
    """A counter of up to 90 W that wraps every 0.33 s or later, read late, with ticks missed, and begun anew."""
    steps = draw(
        st.lists(
            st.tuples(st.floats(0.1, 90), st.sampled_from([1, 1, 1, 1, 2, 3, 8]), st.integers(0, 60_000)),
            min_size=3,
            max_size=max_size,
        )
    )
    counter = Counter(unit_j=UNIT_J, wrap=RANGE, max_w=100, lag_s=0.001)
    count, tick, before_ns = draw(st.integers(0, RANGE)), 10, None
    readings, counts = [], []
    for watts, ticks, late_us in steps:
        tick += ticks
        t_ns = tick * TICK + late_us * 1000
        if before_ns is not None:
            count += round(watts * (t_ns - before_ns) / 1e9 / UNIT_J)
        before_ns = t_ns
        total, flags = counter.update(count % RANGE, t_ns)
        readings.append(Reading(tick * TICK, t_ns, "n", device, domain, "rapl-powercap", total, flags))
        counts.append(count)
    return Run(readings, counts)


def covered(run, share):
    """Return the instant at a share of the run's longest life, and that life's ends."""
    begin, end = max(run.lives(), key=lambda life: life[1] - life[0])
    first, last = run.readings[begin].t_ns, run.readings[end].t_ns
    return [first + round((last - first) * s) for s in share]


@settings(deadline=None)
@given(runs())
def test_between_any_two_readings_of_a_life_the_joules_are_the_counters(run):
    for begin, end in run.lives():
        for a, b in [(begin, end), (begin, (begin + end) // 2), ((begin + end) // 2, end)]:
            (energy,) = joules(run.readings, run.readings[a].t_ns, run.readings[b].t_ns)
            assert energy.joules == pytest.approx((run.counts[b] - run.counts[a]) * UNIT_J, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(runs(), st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_any_split_into_windows_sums_to_the_whole(run, cuts):
    edges = sorted(covered(run, cuts))
    whole = joules(run.readings, edges[0], edges[-1])[0].joules
    parts = [joules(run.readings, a, b)[0].joules for a, b in pairwise(edges)]
    assert sum(parts) == pytest.approx(whole, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(runs(), st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_a_window_in_stretches_sums_to_the_whole_with_the_same_bound(run, cuts):
    edges = sorted(covered(run, cuts))
    integral = Integral(edges[0], interval_ns=TICK)
    for edge in edges[1:]:
        integral.add(curves(run.readings), edge)
    (added,), (once,) = integral.energies(), joules(run.readings, edges[0], edges[-1], TICK)
    assert added.joules == pytest.approx(once.joules, rel=1e-9, abs=1e-12)
    assert added.error_j == pytest.approx(once.error_j, rel=1e-9)
    assert added.interpolated == once.interpolated
    assert added.interpolated_share == pytest.approx(once.interpolated_share, abs=1e-9)


@settings(deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_tuples_sum_to_the_window_over_every_stretch_of_ticks_that_all_devices_cover(several):
    rows = [
        Reading(r.tick_ns, r.t_ns, "n", f"package-{i}", "cpu", r.source, r.joules, r.flags)
        for i, run in enumerate(several)
        for r in run.readings
    ]
    first, last = min(r.tick_ns for r in rows), max(r.tick_ns for r in rows) + TICK
    found = {t.t_ns: t for t in tuples(rows, first, last, TICK) if t.cpu_energy is not None}
    stretches, current = [], []
    for tick in range(first + TICK, last + 1, TICK):
        if tick in found:
            current.append(tick)
        elif current:
            stretches.append(current)
            current = []
    stretches += [current] if current else []
    for ticks in stretches:
        window = joules(rows, ticks[0] - TICK, ticks[-1])
        if len(window) < len(several):
            # A life ended and the next began between two ticks, each of which has its tuple.
            continue
        assert sum(found[t].cpu_energy for t in ticks) == pytest.approx(sum(e.joules for e in window), rel=1e-9)


@settings(deadline=None, max_examples=25)
@given(run=runs(), dram=runs(domain="dram"))
def test_what_a_store_gives_back_sums_to_the_same(tmp_path_factory, run, dram):
    path = tmp_path_factory.mktemp("store") / "energy.sqlite"
    readings = [*run.readings, *dram.readings]
    with SqliteStore.create(path) as store:
        store.begin_session("n", 0, TICK, {})
        store.append(readings)
    last = max(r.tick_ns for r in readings)
    with SqliteStore.open(path) as store:
        stored = list(stored_tuples(store, 0, 2**63 - 1))
    direct = list(tuples(readings, 0, last + TICK, TICK))
    assert stored == direct
    assert all(t.cpu_energy is not None or t.memory_energy is not None for t in stored)
