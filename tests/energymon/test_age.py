"""How old the value of a counter may be at a reading, and what that means for windows."""

import pytest

from energymon import Reading, joules
from energymon.sensors.updates import Age, Poll, lag_of

MS = 10**6


def shown(period_ms, tick_ms, stop_ms, read_ms=0.01):
    """Yield (value, before, after, true instant of the value), ns, of a counter that moves every `period_ms`."""
    at_ms = 0.0
    while at_ms < stop_ms:
        since_ms = at_ms // period_ms * period_ms
        yield since_ms, round(at_ms * MS), round((at_ms + read_ms) * MS), round(since_ms * MS)
        at_ms += tick_ms


@pytest.mark.parametrize("period_ms", [0.9, 8.0, 20.0, 140.0, 250.0])
@pytest.mark.parametrize("tick_ms", [2.0, 7.3, 100.0])
def test_a_value_is_never_older_than_is_said_whatever_the_period(period_ms, tick_ms):
    age = Age(period_ms / 1e3)
    ages = [(age.since_ns(*look), true_ns) for *look, true_ns in shown(period_ms, tick_ms, 5000)]
    assert all(since_ns <= true_ns for since_ns, true_ns in ages[1:])
    assert all(true_ns - since_ns <= max(period_ms, tick_ms) * MS for since_ns, true_ns in ages[1:])


@pytest.mark.parametrize("period_ms", [140.0, 250.0])
def test_a_value_that_outlasts_the_lag_shows_that_it_is_longer(period_ms):
    age = Age(0.02)
    ages = [(age.since_ns(*look), true_ns) for *look, true_ns in shown(period_ms, 10.0, 5000)]
    settled = ages[round(period_ms / 10) * 2 :]
    assert all(since_ns <= true_ns for since_ns, true_ns in settled)
    assert period_ms * MS <= age.lag_ns <= (period_ms + 25) * MS


def looks(period_ms, held=()):
    """Poll each millisecond; before some polls the poller is held up."""
    at_ms, found = 0.0, []
    while at_ms < 20 * period_ms:
        at_ms += 1 + next((ms for when, ms in held if when <= at_ms < when + 1), 0)
        found.append(Poll(round(at_ms * MS), round((at_ms + 0.01) * MS), at_ms // period_ms))
    return found


def test_the_lag_is_the_longest_time_between_updates_with_a_margin():
    assert 0.02 <= lag_of(looks(20.0)) <= 1.25 * 0.022 + 1e-4


def test_a_poller_that_is_held_up_does_not_take_that_for_the_counters_lag():
    assert lag_of(looks(20.0, held=[(110.2, 60.0), (250.3, 33.0)])) <= 1.25 * 0.045


def test_a_counter_that_was_not_seen_to_move_twice_has_no_lag_that_is_known():
    assert lag_of(looks(1000.0)[:1500]) is None


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
