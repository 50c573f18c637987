"""Whatever the order in which samples are done, each is in one batch, and parked ones do not wait for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaders.sample_aware.policy.balancer import Balancer, Resume, Row, Start


class Workers:
    """Any number of workers that do what a stream of choices says, as the balancer's owner would tell it."""

    def __init__(self, data, sizes, workers, order, *, max_wait=3, background=1, failing=False, bundling=False):
        self.data, self.sizes, self.workers, self.order = data, list(sizes), workers, order
        self.balancer = Balancer(order=order, background=background, max_wait=max_wait)
        self.max_wait, self.failing, self.bundling = max_wait, failing, bundling
        self.held, self.rows, self.spare = {}, [], 0
        self.parked_at, self.begun, self.failed = {}, Counter(), set()
        self.batches, self.homes, self.waits = [], {}, []

    def open(self):
        if self.sizes:
            for sample in self.balancer.open_batch(self.sizes.pop(0)):
                self.homes[sample] = None
        if not self.sizes:
            self.balancer.no_more()

    def run(self):
        self.open()
        while not self.balancer.over:
            self.ship()
            if self.balancer.over:
                break
            if self.sizes and (self.balancer.new == 0 or self.data.draw(st.booleans())):
                self.open()
            if self.bundling and self.data.draw(st.booleans()) and (bundle := self.balancer.next_bundle()) is not None:
                self.bundle(bundle)
            while len(self.held) < self.workers and (task := self.balancer.next_task()) is not None:
                self.take(task)
            if self.held:
                self.advance()
        self.ship()

    def bundle(self, bundle):
        """Make a batch as a whole, or leave some of its samples to others."""
        done = self.data.draw(st.integers(1, len(bundle.samples)))
        self.begun.update(bundle.samples[:done])
        if done == len(bundle.samples):
            self.balancer.finish_bundle(bundle)
            return
        self.balancer.give_back(bundle.samples[done:])
        for row, sample in enumerate(bundle.samples[:done]):
            self.balancer.finish(sample, Row(bundle.batch, row))

    def take(self, task):
        overdue = [s for s, at in self.parked_at.items() if self.balancer.completed - at >= self.max_wait]
        if isinstance(task, Start):
            assert not overdue, "a new sample was begun before one that has waited too long"
            self.begun[task.sample] += 1
            if task.row is None:
                if self.spare:
                    self.spare -= 1
                else:
                    self.rows.append(self.balancer.take_row())
        else:
            self.waits.append(self.balancer.completed - self.parked_at.pop(task.sample))
        self.held[task.sample] = task

    def advance(self):
        sample = self.data.draw(st.sampled_from(sorted(self.held)))
        task = self.held.pop(sample)
        actions = ["done"]
        if isinstance(task, Start) and task.row is None:
            actions.append("park")
        if self.failing:
            actions.append("fail")
        match self.data.draw(st.sampled_from(actions)):
            case "park":
                self.parked_at[sample] = self.balancer.completed
                self.balancer.park(sample)
            case "fail":
                self.failed.add(sample)
                self.spare += self.order == "arrival"
                self.balancer.fail(sample)
            case "done":
                row = task.row if isinstance(task, Start) and task.row is not None else self.rows.pop(0)
                self.balancer.finish(sample, row)

    def ship(self):
        while (batch := self.balancer.next_batch()) is not None:
            self.batches.append(batch)


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(st.data(), sizes, st.integers(1, 5), st.sampled_from(["arrival", "strict"]), st.booleans())
def test_every_sample_is_begun_once_and_comes_once_or_has_failed(data, sizes, workers, order, failing):
    run = Workers(data, sizes, workers, order, failing=failing)
    run.run()
    given = [sample for _, samples in run.batches for sample in samples]
    assert Counter(given) == Counter(set(range(sum(sizes))) - run.failed)
    assert set(run.begun.values()) == {1} and len(run.begun) == sum(sizes)
    if order == "strict":
        assert given == sorted(given)
        assert [number for number, _ in run.batches] == sorted(number for number, _ in run.batches)
    if order == "arrival":
        # All full but those at the end that failures have emptied.
        assert sum(len(samples) < sizes[number] for number, samples in run.batches) <= min(1, len(run.failed))


@settings(max_examples=60, deadline=None)
@given(st.data(), sizes, st.integers(1, 4), st.integers(0, 3))
def test_nothing_new_is_begun_while_a_parked_sample_has_waited_too_long(data, sizes, workers, max_wait):
    # The rule itself is asserted whenever a sample is begun.
    run = Workers(data, sizes, workers, "arrival", max_wait=max_wait, background=0)
    run.run()
    assert not run.parked_at


@settings(max_examples=80, deadline=None)
@given(st.data(), sizes, st.integers(1, 4), st.sampled_from(["arrival", "strict"]))
def test_samples_of_batches_that_one_worker_makes_or_leaves_to_others_come_once(data, sizes, workers, order):
    run = Workers(data, sizes, workers, order, bundling=True)
    run.run()
    given = [sample for _, samples in run.batches for sample in samples]
    assert Counter(given) == Counter(range(sum(sizes))) == run.begun
    assert all(len(samples) == sizes[number] for number, samples in run.batches)
    if order == "strict":
        assert given == sorted(given)


def parked(balancer, count):
    for _ in range(count):
        task = balancer.next_task()
        balancer.take_row()
        balancer.park(task.sample)


def test_background_workers_are_bounded_while_there_is_new_work():
    balancer = Balancer(background=2, max_wait=100)
    balancer.open_batch(10)
    for _ in range(4):
        task = balancer.next_task()
        assert isinstance(task, Start)
    for sample in range(4):
        balancer.park(sample)
    kinds = [type(balancer.next_task()) for _ in range(8)]
    assert kinds == [Resume, Resume, *[Start] * 6]
    # With nothing new left, whoever is idle goes on with a parked one.
    assert [type(balancer.next_task()) for _ in range(3)] == [Resume, Resume, type(None)]


def test_where_new_samples_may_not_be_begun_parked_ones_go_on():
    balancer = Balancer(background=0, max_wait=100)
    balancer.open_batch(4)
    parked(balancer, 1)
    assert isinstance(balancer.next_task(may_start=False), Resume)
    assert balancer.next_task(may_start=False) is None


def test_what_nobody_holds_can_neither_be_done_nor_fail_nor_be_parked():
    balancer = Balancer()
    balancer.open_batch(2)
    for wrong in (lambda: balancer.finish(0, Row(0, 0)), lambda: balancer.fail(0), lambda: balancer.park(1)):
        with pytest.raises(ValueError, match="no worker holds it"):
            wrong()


def test_a_row_is_filled_once():
    balancer = Balancer()
    balancer.open_batch(2)
    balancer.next_task(), balancer.next_task()
    balancer.finish(0, Row(0, 1))
    with pytest.raises(ValueError, match="sample 0"):
        balancer.finish(1, Row(0, 1))
