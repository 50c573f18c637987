"""How old the value of a counter may be at a reading, and what that means for windows."""

import math
import random
from bisect import bisect_right
from itertools import count, takewhile

import pytest

from energymon import Reading, joules
from energymon.analysis.curve import curves
from energymon.analysis.integrate import Integral
from energymon.sensors.counter import Counter
from energymon.sensors.updates import Poll, lag_of

MS = 10**6


def shown(updates_ms, ticks_ms, read_ms=0.01):
    """Yield (value, before, after, true instant of the value), ns, of a counter that is updated at some instants."""
    for at_ms in ticks_ms:
        since_ms = updates_ms[bisect_right(updates_ms, at_ms) - 1]
        yield round(100 * since_ms), round((at_ms + read_ms) * MS), round(at_ms * MS), round(since_ms * MS)


def every(period_ms, until_ms=5000.0, start_ms=0.0):
    return list(takewhile(lambda at_ms: at_ms < until_ms, count(start_ms, period_ms)))


def counter(lag_s=0.001, **options):
    return Counter(unit_j=1e-3, wrap=None, max_w=1000.0, lag_s=lag_s, **options)


UPDATES = {
    "0.9 ms": every(0.9),
    "8 ms": every(8.0),
    "250 ms": every(250.0),
    "20 ms, then 90 ms": [*every(20.0, 2000.0), *every(90.0, start_ms=2000.0)],
    "1 ms, then 80 ms": [*every(1.0, 2000.0), *every(80.0, start_ms=2000.0)],
    "1 ms, with stalls of 60 ms": [at_ms for at_ms in every(1.0) if at_ms % 730 <= 670],
}
TICKS = {
    "2 ms": every(2.0),
    "7.3 ms": every(7.3),
    "100 ms": every(100.0),
    "100 ms and edges": sorted(
        [*every(100.0), *(edge + 0.3 * k for edge in every(317.0, start_ms=150.0) for k in range(5))]
    ),
}


@pytest.mark.parametrize("delay_ms", [0.0, 50.0])
@pytest.mark.parametrize("ticks_ms", TICKS.values(), ids=TICKS)
@pytest.mark.parametrize("updates_ms", UPDATES.values(), ids=UPDATES)
def test_a_value_is_never_older_than_is_said_and_none_is_refused_whenever_it_is_updated(updates_ms, ticks_ms, delay_ms):
    """The load draws 100 W."""
    one = counter()
    one.delay_s = delay_ms / 1e3
    looks = list(shown(updates_ms, ticks_ms))
    found = []
    for value, now_ns, before_ns, true_ns in looks:
        one.update(value, now_ns, before_ns)
        found.append((one.since_ns, true_ns))
    assert all(since_ns <= true_ns - delay_ms * MS for since_ns, true_ns in found[1:])
    # No reading is said to be of an instant before the one that showed the value before it.
    changes = [0, *(i for i in range(1, len(looks)) if looks[i][0] != looks[i - 1][0])]
    assert all(found[i][0] == looks[i - 1][2] - delay_ms * MS for i in changes[1:])


def used_mj(at_ms):
    """Return what a load used that draws 500 W and 100 W for 85 ms each."""
    waves, rest_ms = divmod(at_ms, 170.0)
    return 51_000 * waves + 500 * min(rest_ms, 85.0) + 100 * max(rest_ms - 85.0, 0.0)


@pytest.mark.parametrize("delay_ms", [0.0, 50.0])
@pytest.mark.parametrize("ticks_ms", TICKS.values(), ids=TICKS)
@pytest.mark.parametrize("updates_ms", UPDATES.values(), ids=UPDATES)
def test_none_of_a_thousand_windows_is_outside_its_bound_whenever_the_counter_is_updated(
    updates_ms, ticks_ms, delay_ms
):
    unwraps = counter(lag_s=1.25 * (updates_ms[1] - updates_ms[0]) / 1e3)
    unwraps.delay_s = delay_ms / 1e3
    rows = []
    for _, after_ns, before_ns, true_ns in shown(updates_ms, ticks_ms):
        value = round(used_mj(true_ns / MS + 1000 - delay_ms))
        shown_j, flags = unwraps.update(value, after_ns, before_ns)
        early_ns, late_ns = before_ns - unwraps.since_ns, after_ns - before_ns
        rows.append(
            Reading(before_ns, before_ns, "n", "gpu-0", "gpu", "nvml-counter", shown_j, flags, early_ns, late_ns)
        )
    dice = random.Random(7)
    series = curves(rows)
    for _ in range(1000):
        begin_ms = dice.uniform(500.0, 3800.0)
        end_ms = begin_ms + math.exp(dice.uniform(math.log(20.0), math.log(500.0)))
        integral = Integral(round(begin_ms * MS), interval_ns=100 * MS)
        integral.add(series, round(end_ms * MS))
        (found,) = integral.energies()
        truth_j = (used_mj(end_ms + 1000) - used_mj(begin_ms + 1000)) / 1e3
        assert abs(found.joules - truth_j) <= found.error_j + 0.003, (begin_ms, end_ms)


def looks(period_ms, held=()):
    """Poll each millisecond; before some polls the poller is held up."""
    at_ms, found = 0.0, []
    while at_ms < 20 * period_ms:
        at_ms += 1 + next((ms for when, ms in held if when <= at_ms < when + 1), 0)
        found.append(Poll(round(at_ms * MS), round((at_ms + 0.01) * MS), at_ms // period_ms))
    return found


def test_the_lag_is_the_longest_time_between_updates_with_a_margin_and_not_that_of_a_poller_that_is_held_up():
    assert 0.02 <= lag_of(looks(20.0)) <= 1.25 * 0.022 + 1e-4
    assert lag_of(looks(20.0, held=[(110.2, 60.0), (250.3, 33.0)])) <= 1.25 * 0.045
    assert lag_of(looks(1000.0)[:1500]) is None, "it was not seen to move twice"


def bracketed(at_ms, until_ms, value, early_ms=1.0):
    """Return a reading whose call took from `at_ms` until `until_ms`."""
    middle = round((at_ms + until_ms) / 2 * MS)
    late_ns = round(until_ms * MS) - middle
    return Reading(
        round(at_ms * MS),
        middle,
        "n",
        "package-0",
        "cpu",
        "rapl-perf",
        value,
        "",
        late_ns + round(early_ms * MS),
        late_ns,
    )


@pytest.mark.parametrize("taken_ms", [100.0, 3000.0, 6090.0])
def test_the_whole_call_of_a_reading_that_took_long_is_in_the_bound_of_every_window_that_meets_it(taken_ms):
    """100 W; one call takes six seconds, and takes the value at its begin, in its middle or at its end."""
    rows = [bracketed(ms, ms + 0.01, ms / 10) for ms in range(0, 20_000, 100) if not 5000 <= ms <= 11_000]
    rows.append(bracketed(5000, 11_090, (4999 + taken_ms) / 10))
    for start_ms, end_ms in [(1000, 5050), (1000, 8000), (5500, 15_000), (6000, 6100), (7000, 10_000), (1000, 15_000)]:
        (found,) = joules(rows, start_ms * MS, end_ms * MS, 100 * MS)
        assert abs(found.joules - (end_ms - start_ms) / 10) <= found.error_j
    # Beyond it, the bound is small.
    assert found.error_j <= 20.2
