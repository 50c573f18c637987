"""Slow samples make way, are never worked on twice, and come as soon as they are ready."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from loaders import SampleAwareLoader
from loaders.sample_aware.coordinator.tasks import TaskTable

pytestmark = pytest.mark.process

HEAVY = {k: 0.03 for k in range(0, 60, 5)}


def ids_of(batches):
    return [int(sample_id) for batch in batches for sample_id in batch.ids]


def check(batch):
    assert (batch.data.amax(dim=(1, 2)) == batch.labels.to(batch.data.dtype)).all()
    assert (batch.labels.numpy() == batch.ids).all()


@pytest.fixture
def make(make_samples, timed):
    def loader(count, steps, **options):
        usual = {"transform": timed(tuple(steps)), "batch_size": 4, "seed": 0, "num_workers": 3}
        return SampleAwareLoader(**{"samples": make_samples(count), **usual, **options})

    return loader


def test_parked_samples_are_resumed_at_their_transform_and_nothing_runs_twice(make, step, tmp_path):
    notes = tmp_path / "notes"
    steps = [step("First", HEAVY, notes=notes), *(step(f"Rest{k}", HEAVY, 0.002, notes) for k in range(2))]
    with make(60, steps, slow_timeout_s=0.01, num_workers=2) as loader:
        for epoch in range(2):
            batches = list(loader.epoch(epoch))
            assert Counter(ids_of(batches)) == Counter(range(60))
            for batch in batches:
                check(batch)
        details = loader.stats().details
    ran = Counter(tuple(line.split()[:3]) for line in notes.read_text().splitlines())
    assert set(ran.values()) == {1} and len(ran) == 3 * 60 * 2
    assert details["parked_samples"] > 0 and details["slow_samples"] >= 2 * len(HEAVY)


def test_slow_samples_are_mixed_in_and_not_left_for_the_end(make, step):
    heavy = {k: 0.04 for k in range(0, 150, 5)}
    with make(150, [step("Light", usual_s=0.004), step("Heavy", heavy)], batch_size=5) as loader:
        ids = ids_of(loader.epoch(0))
    assert Counter(ids) == Counter(range(150))
    assert sum(sample_id in heavy for sample_id in ids[:75]) >= len(heavy) // 4


def test_a_slow_sample_delays_no_batch_but_its_own(make, step):
    with make(40, [step("Step", {3: 1.5}, 0.001)]) as loader:
        batches = list(loader.epoch(0))
    assert Counter(ids_of(batches)) == Counter(range(40))
    assert 3 in batches[-1].ids


def test_in_strict_order_batches_are_the_samplers_whatever_their_samples_take(make, step):
    with make(40, [step("Step", HEAVY)], order="strict", slow_timeout_s=0.005) as loader:
        batches = list(loader.epoch(0))
        assert ids_of(batches) == loader._share.order(0).tolist()
        assert loader.stats().details["parked_samples"] == 0
        assert loader.stats().details["slow_samples"] >= len([k for k in HEAVY if k < 40])


def test_a_batch_that_one_sample_leaves_asks_for_memory_once(make, step, monkeypatch):
    asked, allocate = [], TaskTable.allocate
    monkeypatch.setattr(TaskTable, "allocate", lambda *given: asked.append(1) or allocate(*given))
    steps = [step("First", dict.fromkeys(range(5, 480, 48), 0.02), 0.001), step("Rest", usual_s=0.0025)]
    with make(480, steps, batch_size=24, num_workers=1, slow_timeout_s=0.01) as loader:
        assert Counter(ids_of(loader.epoch(0))) == Counter(range(480))
        parked = loader.stats().details["parked_samples"]
    assert parked and len(asked) < 3 * parked


def test_every_sample_may_be_slow(make, step):
    steps = [step(f"Step{k}", usual_s=0.003) for k in range(3)]
    with make(40, steps, slow_timeout_s=1e-6) as loader:
        for epoch in range(2):
            assert Counter(ids_of(loader.epoch(epoch))) == Counter(range(40))
        assert loader.stats().details["slow_share"] == 1


def test_one_that_never_ends_holds_up_neither_the_other_batches_nor_the_end(make, hang):
    with make(41, [hang("Step", {3: 0.0}, 0.03)]) as loader:
        epoch = loader.epoch(0)
        ids = ids_of(next(epoch) for _ in range(10))
        assert len(ids) == 40 and 3 not in ids


def test_one_transform_is_timed_as_a_whole_and_that_is_noted(make, step):
    with make(40, [step("All", HEAVY)], slow_timeout_s=0.01) as loader:
        assert Counter(ids_of(loader.epoch(0))) == Counter(range(40))
        assert loader.stats().details["slow_samples"] >= len([k for k in HEAVY if k < 40])
    with make(4, []) as loader:
        assert any("one transform" in note for note in loader.notes)


def test_the_timeout_is_profiled_and_its_history_told(make, step):
    with make(60, [step("Light", usual_s=0.002), step("Heavy", HEAVY)], warm_up=16) as loader:
        for _ in loader.epoch(0):
            time.sleep(0.02)  # so that a batch waits
        assert loader.timeout_history[0].samples == 16 and loader.timeout_history[0].reason == "profiled"
        details = loader.stats().details
    assert details["timeout_s"] > 0.002 and details["light_mean_s"] > 0.002 and details["batch_queue_most"] >= 1


def test_epochs_broken_off_in_the_middle_leave_nothing_to_the_next(make, step):
    with make(60, [step("Light", usual_s=0.001), step("Heavy", HEAVY)], slow_timeout_s=0.005) as loader:
        for epoch in range(8):
            started = loader.epoch(epoch)
            for _ in range(epoch % 4):
                check(next(started))
        batches = list(loader.epoch(9))
        assert Counter(ids_of(batches)) == Counter(range(60))
        for batch in batches:
            check(batch)


def test_memory_ahead_is_bounded_in_bytes(make, make_samples, timed):
    pipeline = timed(side=256)
    with make(60, (), transform=pipeline, max_bytes=1 << 20, prefetch_factor=8) as loader:
        held = []
        for batch in loader.epoch(0):
            check(batch)
            held.append(loader._engine._arena.ahead)
        # 64 KiB a sample, 256 KiB a batch: with two samples, or a batch that is collated, under way for each of 4
        # workers when the bound is met. Without a bound there are 32 batches.
        assert max(held) <= (1 << 20) + 2 * 4 * (64 << 10) + 4 * (288 << 10)


def test_the_scheduler_adds_workers_where_the_queue_runs_empty_and_takes_them_back(make, step):
    options = {"num_workers": 1, "min_workers": 1, "max_workers": 4}
    with make(200, [step("Step", usual_s=0.05)], **options) as loader:
        epoch = loader.epoch(0)
        while loader.stats().details["workers"] < 4:
            next(epoch)
        grown = [decision.workers for decision in loader.decisions]
        assert grown == sorted(grown) and grown[-1] == 4
        epoch.close()
    # However busy the machine: here all of it counts as idle.
    with make(600, [step("Step")], **options | {"num_workers": 4, "theta_c": 2.0}) as loader:
        epoch = loader.epoch(0)
        while loader.stats().details["workers"] in (0, 4):
            next(epoch)
            time.sleep(0.02)
        assert loader.decisions[0].workers < 4 and all(decision.reason for decision in loader.decisions)
        assert len(ids_of(epoch)) > 0
