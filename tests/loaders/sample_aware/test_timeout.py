"""The timeout that tells slow samples from fast ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.sample_aware.policy.timeout import SlowTimeout


def fed(times, **options):
    timeout = SlowTimeout(**options)
    for seconds in times:
        timeout.add([float(seconds)])
    return timeout


def speech(count, heavy_s, seed=0):
    """The paper's Speech: half a second, and one in five takes `heavy_s` more; jitter of a per cent."""
    rng = np.random.default_rng(seed)
    times = 0.5 * rng.uniform(1, 1.01, count)
    times[::5] += heavy_s
    return times


def test_nothing_is_slow_while_the_warm_up_lasts():
    timeout = fed([1.0] * 31, warm_up=32)
    assert timeout.timeout_s is None
    timeout.add([1.0])
    assert timeout.timeout_s == 1.0


@pytest.mark.parametrize("heavy_s", [3.0, 10.0])
def test_speech_keeps_the_75th_percentile_and_calls_the_heavy_ones_slow(heavy_s):
    times = speech(1000, heavy_s)
    timeout = fed(times)
    assert {change.percentile for change in timeout.history} == {75}
    assert 0.5 < timeout.timeout_s < 0.51 < min(times[::5])


def test_samples_that_hardly_differ_have_it_fall_back_to_the_90th_percentile():
    timeout = fed(np.random.default_rng(0).normal(1.0, 0.05, 500))
    assert timeout.history[-1].percentile == 90
    assert timeout.history[-1].slow_share == pytest.approx(0.1, abs=0.05)


def test_it_returns_to_the_75th_percentile_when_samples_come_to_differ():
    timeout = fed([*np.random.default_rng(0).normal(0.5, 0.05, 300), *speech(600, 3.0)], window=300)
    assert timeout.history[0].percentile == 90
    assert timeout.history[-1].percentile == 75 and any("spread" in change.reason for change in timeout.history)


def test_it_follows_a_workload_that_drifts_and_keeps_a_history():
    rng = np.random.default_rng(1)
    timeout = fed([*rng.exponential(0.1, 1000), *rng.exponential(1.0, 1000)], window=400)
    first, last = timeout.history[0], timeout.history[-1]
    assert (first.reason, first.samples) == ("profiled", 32)
    assert last.timeout_s > 5 * first.timeout_s and last.reason == "times have changed"
    assert [change.samples for change in timeout.history] == sorted(change.samples for change in timeout.history)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=32, max_size=300))
def test_whatever_the_times_the_timeout_is_one_of_them_or_between_two(times):
    timeout = fed(times)
    assert min(times) <= timeout.timeout_s <= max(times)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=100))
def test_the_timeout_is_the_percentile_that_it_says(times):
    timeout = fed(times, warm_up=len(times))
    (profiled,) = timeout.history
    assert profiled.timeout_s == timeout.timeout_s == pytest.approx(np.percentile(times, profiled.percentile))
    assert profiled.slow_share == np.mean(np.array(times) > timeout.timeout_s)


@pytest.mark.parametrize(("slow_s", "percentile"), [(1.4, 90), (2.0, 75), (2.6, 75)])
def test_samples_that_end_soon_after_the_timeout_are_slow_for_nothing(slow_s, percentile):
    assert fed([1.0] * 75 + [slow_s] * 25, warm_up=100).history[-1].percentile == percentile


def test_who_adds_a_time_is_told_whether_the_timeout_is_another_now():
    timeout = SlowTimeout(warm_up=32, every=50, window=32)
    assert [k for k in range(132) if timeout.add([1.0])] == [31]
    assert [k for k in range(50) if timeout.add([1.2])] == [49]
    fixed = SlowTimeout(warm_up=2, fixed_s=1.0)
    assert not any(fixed.add([2.0]) for _ in range(100)) and fixed.timeout_s == 1.0
    assert [(change.samples, change.slow_share, change.reason) for change in fixed.history] == [(0, 0.0, "fixed")]


def test_the_history_leaves_out_changes_of_less_than_a_twentieth():
    timeout = fed([1.0] * 32, warm_up=32, every=32, window=32)
    for seconds, lines in ((1.04, 1), (1.08, 1), (1.15, 2), (1.05, 3)):
        changed = [timeout.add([seconds]) for _ in range(32)]
        assert changed[-1] and timeout.timeout_s == seconds
        assert len(timeout.history) == lines
