"""Whatever the order in which samples are done, each is in one batch, and parked ones do not wait for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.sample_aware.policy.balancer import NO_BATCH, Balancer


class Simulation:
    """Any number of workers that do what a stream of choices says, as the balancer's owner would report it."""

    def __init__(self, data, sizes, workers, order, *, max_wait=3, background=1, failing=False, parking=True):
        self.data, self.sizes, self.workers, self.order = data, list(sizes), workers, order
        self.balancer = Balancer(order=order, background=background, max_wait=max_wait)
        self.max_wait, self.failing, self.parking = max_wait, failing, parking and order == "arrival"
        self.given, self.parked_at, self.begun, self.failed = [], {}, Counter(), set()
        self.batches = {}

    def run(self):
        self.open()
        while not self.balancer.over:
            if self.sizes and (self.balancer.is_idle or self.data.draw(st.booleans())):
                self.open()
            while (work := self.balancer.next_batch()) is not None:
                self.complete(work)
            whole, part = self.data.draw(st.booleans()), self.data.draw(st.integers(1, 3))
            while (
                len(self.given) < self.workers and (work := self.balancer.next_work(whole=whole, part=part)) is not None
            ):
                self.take(work)
            if self.given:
                self.advance(self.given.pop(self.data.draw(st.integers(0, len(self.given) - 1))))

    def open(self):
        if self.sizes:
            self.balancer.open_batch(self.sizes.pop(0))
        if not self.sizes:
            self.balancer.is_ending = True

    def take(self, work):
        overdue = [s for s, at in self.parked_at.items() if self.balancer.completed - at >= self.max_wait]
        for sample in work.samples:
            if self.parked_at.pop(sample, None) is None:
                assert not overdue, "a new sample was begun before one that has waited too long"
                self.begun[sample] += 1
        self.given.append(work)

    def advance(self, work):
        if work.batch != NO_BATCH and self.data.draw(st.booleans()):
            self.complete(work)
            return
        if work.batch != NO_BATCH:
            self.balancer.break_up(work.batch)
        left = False
        for sample in work.samples:
            actions = ["done"] + ["park"] * self.parking + ["fail"] * self.failing
            actions += ["leave"] * (work.batch != NO_BATCH)
            action = "leave" if left else self.data.draw(st.sampled_from(actions))
            if action == "park":
                self.parked_at[sample] = self.balancer.completed
                self.balancer.park(sample)
            elif action == "fail":
                self.failed.add(sample)
                self.balancer.fail(sample)
            elif action == "done":
                self.balancer.finish(sample)
            else:
                left = True
                self.begun[sample] -= 1
                self.balancer.give_back(sample)

    def complete(self, work):
        self.balancer.complete(work.batch)
        assert work.batch not in self.batches and not self.balancer.is_pending(work.batch)
        self.batches[work.batch] = list(work.samples)


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.data(), sizes, st.integers(1, 5), st.sampled_from(["arrival", "strict"]), st.booleans())
def test_every_sample_is_begun_once_and_comes_once_or_has_failed(data, sizes, workers, order, failing):
    run = Simulation(data, sizes, workers, order, failing=failing)
    run.run()
    given = [sample for samples in run.batches.values() for sample in samples]
    assert Counter(given) == Counter(set(range(sum(sizes))) - run.failed)
    assert set(run.begun.values()) == {1} and len(run.begun) == sum(sizes)
    if order == "strict":
        assert [sample for _, samples in sorted(run.batches.items()) for sample in samples] == sorted(given)
    if not run.failed:
        assert [len(samples) for _, samples in sorted(run.batches.items())] == sizes


@settings(max_examples=60, deadline=None)
@given(st.data(), sizes, st.integers(1, 4), st.integers(0, 3))
def test_nothing_new_is_begun_while_a_parked_sample_has_waited_too_long(data, sizes, workers, max_wait):
    # The rule itself is asserted whenever a sample is begun.
    run = Simulation(data, sizes, workers, "arrival", max_wait=max_wait, background=0)
    run.run()
    assert not run.parked_at


def test_background_workers_are_bounded_while_there_is_new_work():
    balancer = Balancer(background=2, max_wait=100)
    balancer.open_batch(10)
    for sample in [balancer.next_work().samples[0] for _ in range(4)]:
        balancer.park(sample)
    assert [balancer.next_work().samples[0] for _ in range(8)] == [0, 1, *range(4, 10)]
    # With nothing new left, whoever is idle goes on with a parked one.
    assert [work and work.samples[0] for work in (balancer.next_work() for _ in range(3))] == [2, 3, None]


def test_where_new_samples_may_not_be_begun_parked_ones_go_on():
    balancer = Balancer(background=0, max_wait=100)
    balancer.open_batch(4)
    balancer.park(balancer.next_work().samples[0])
    assert balancer.next_work(may_start=False).samples == (0,)
    assert balancer.next_work(may_start=False) is None


def test_what_no_worker_has_can_neither_be_done_nor_fail_nor_be_parked():
    balancer = Balancer()
    balancer.open_batch(2)
    for wrong in (balancer.finish, balancer.fail, balancer.park, balancer.give_back):
        with pytest.raises(ValueError, match="sample 0"):
            wrong(0)
