"""Formulas 1 and 2 of the MinatoLoader paper."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders import LoaderConfigError
from loaders.sample_aware.options import PolicyOptions
from loaders.sample_aware.policy.scheduler import Scheduler


@pytest.mark.parametrize(
    ("workers", "queued", "cpu", "after", "reason"),
    [
        (12, 0, 1.0, 14, "batch queue 0% full, processors 100% busy"),
        (12, 0, 0.2, 14, "batch queue 0% full"),
        (12, 100, 0.1, 11, "batch queue 100% full"),
        (12, 100, 0.7, 12, "batch queue 100% full"),
        (12, 30, 0.7, 13, "batch queue 30% full"),
        (63, 0, 1.0, 64, "max_workers=64 reached"),
        (2, 100, 0.0, 2, "min_workers=2 reached"),
    ],
)
def test_workers_follow_the_queue_and_the_processors(workers, queued, cpu, after, reason):
    decision = Scheduler(2, 64).decide(workers, queued=queued, queue_size=100, cpu=cpu)
    assert (decision.before, decision.workers) == (workers, after)
    assert decision.reason.startswith(reason)
    assert decision.delta == pytest.approx(2 * (1 - queued / 100) + (cpu - 0.7))


def test_the_queue_is_a_moving_average():
    scheduler = Scheduler(1, 64)
    queues = [scheduler.decide(8, queued=q, queue_size=10, cpu=0.7).queue for q in (10, 0, 0)]
    assert queues == pytest.approx([1.0, 0.7, 0.49])


@given(
    st.integers(1, 200), st.integers(0, 500), st.floats(0, 1), st.floats(0, 50), st.floats(0, 50), st.integers(1, 100)
)
def test_a_decision_stays_within_its_bounds(workers, queued, cpu, alpha, beta, least):
    scheduler = Scheduler(least, least + 50, alpha=alpha, beta=beta)
    decision = scheduler.decide(workers, queued=queued, queue_size=100, cpu=cpu)
    assert least <= decision.workers <= least + 50
    if least <= workers <= least + 50:
        assert abs(decision.workers - workers) <= 2


def scheduler_of(workers, **options):
    return PolicyOptions(**options).settings(workers, 2, "arrival", "raise").scheduler


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"min_workers": 0}, "min_workers=0"),
        ({"max_workers": "all"}, "max_workers='all'"),
        ({"min_workers": 5, "max_workers": 4}, "min_workers=5, max_workers=4"),
        ({"min_workers": 3}, "num_workers=2, min_workers=3"),
    ],
)
def test_bounds_that_cannot_be_are_refused_by_name(options, named):
    with pytest.raises(LoaderConfigError, match=named):
        scheduler_of(2, **options)


def test_as_many_workers_as_processors_are_never_fewer_than_there_are_at_first():
    cores = len(os.sched_getaffinity(0))
    made = [scheduler_of(workers, min_workers=1, max_workers="cores") for workers in (1, cores + 3)]
    assert [(each.min_workers, each.max_workers) for each in made] == [(1, cores), (1, cores + 3)]
