"""What torch's DataLoader gives, SampleAwareDataLoader gives too; the tests run with both, so torch proves them."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, StackDataset, Subset

from loaders import LoaderConfigError, SampleAwareDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*will create.*worker processes", "ignore:.*all of a sample's work"),
    pytest.mark.process,
]
both = pytest.mark.parametrize("kind", [DataLoader, SampleAwareDataLoader], ids=["torch", "ours"])


class Numbers(Dataset):
    def __init__(self, count=20):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor(index)


class Batched(Numbers):
    """Can be asked for many samples at a time, and for nothing else."""

    def __getitem__(self, index):
        raise AssertionError("asked for one")

    def __getitems__(self, indices):
        assert isinstance(indices, list)
        return [torch.tensor(index) for index in indices]


class Seeds(Numbers):
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.initial_seed(), torch.rand(()).item(), random.random(), np.random.rand()


class Failing(Numbers):
    def __getitem__(self, index):
        if index % 6 == 0:
            raise KeyError(f"number {index}")
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def as_given(samples):
    return samples


def double(number):
    return number * 2


def seeds_all(_worker):
    torch.manual_seed(12345)
    random.seed(7)
    np.random.seed(7)


@both
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_with_getitems_is_asked_for_whole_batches(kind, workers):
    for dataset in (Batched(), Subset(Batched(30), range(5, 25)), StackDataset(Batched(), Batched())):
        found = list(kind(dataset, 6, num_workers=workers))
        assert [len(batch[0] if isinstance(batch, list) else batch) for batch in found] == [6, 6, 6, 2]
    first = 5
    found = list(kind(Subset(Batched(30), range(first, 25)), 6, num_workers=workers))
    assert torch.cat(found).tolist() == list(range(first, 25))


def test_batches_of_getitems_overtake_each_other_and_transforms_are_of_samples():
    loader = SampleAwareDataLoader(Batched(100), 8, shuffle=True, num_workers=2, transforms=[double])
    assert loader.by_batch and sorted(torch.cat(list(loader)).tolist()) == list(range(0, 200, 2))
    # These have __getitems__ of their own, and ask for the samples one by one.
    assert not SampleAwareDataLoader(Subset(Numbers(), [1])).by_batch
    assert not SampleAwareDataLoader(StackDataset(a=Numbers())).by_batch
    assert not SampleAwareDataLoader(Batched(), batch_size=None).by_batch


@both
def test_the_seed_that_worker_init_fn_sets_stays(kind):
    loader = kind(Seeds(), 4, num_workers=2, worker_init_fn=seeds_all)
    assert {int(seed) for batch in loader for seed in batch[0]} == {12345}


@both
def test_each_worker_s_initial_seed_is_torch_s(kind):
    base = int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(3)).item())
    loader = kind(Seeds(40), 2, num_workers=2, generator=torch.Generator().manual_seed(3))
    assert {int(seed) for batch in loader for seed in batch[0]} == {base, base + 1}


def test_what_worker_init_fn_seeds_is_drawn_again_whatever_the_loader_s_seed_and_workers():
    def drawn(workers, init):
        loader = SampleAwareDataLoader(Seeds(), 4, num_workers=workers, worker_init_fn=init, order="strict")
        return [[column.tolist() for column in batch[1:]] for batch in loader]

    first = drawn(2, seeds_all)
    assert drawn(3, seeds_all) == first
    assert len({number for batch in first for column in batch for number in column}) == 60
    assert drawn(2, None) != drawn(2, None)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_without_seeds_of_their_own_samples_draw_what_torch_s_would(batch_size):
    options = {"batch_size": batch_size, "num_workers": 1, "collate_fn": as_given, "worker_init_fn": seeds_all}
    theirs = [*DataLoader(Seeds(8), **options)]
    assert [*SampleAwareDataLoader(Seeds(8), order="strict", seed_samples=False, **options)] == theirs
    assert [*SampleAwareDataLoader(Seeds(8), order="strict", **options)] != theirs


@both
def test_a_second_iterator_with_persistent_workers_is_the_first_one_again(kind):
    loader = kind(Numbers(), 5, num_workers=2, persistent_workers=True)
    first = iter(loader)
    next(first)
    assert iter(loader) is first
    assert torch.cat(list(first)).tolist() == list(range(20))
    assert [torch.cat(pair).tolist() for pair in zip(loader, loader, strict=True)] == [
        list(range(10)),
        list(range(10, 20)),
    ]


@both
@pytest.mark.parametrize("persistent", [False, True])
def test_the_iterator_has_a_length_and_its_workers_as_trainers_ask_for_them(kind, persistent):
    loader = kind(Numbers(), 6, num_workers=2, persistent_workers=persistent)
    batches = iter(loader)
    workers = batches._workers
    assert len(batches) == 4 and len(workers) == 2 and all(worker.is_alive() for worker in workers)
    # What Lightning does at the end of a fit.
    batches._shutdown_workers()
    loader._iterator = None
    del batches
    gc.collect()
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()
    assert torch.cat(list(loader)).tolist() == list(range(20))


@both
def test_persistent_workers_end_with_an_iterator_that_is_dropped_without_garbage_collection(kind):
    batches = iter(kind(Numbers(), 5, num_workers=2, persistent_workers=True))
    workers = list(batches._workers)
    next(batches)
    gc.disable()
    try:
        del batches
        for worker in workers:
            worker.join(5)
            assert not worker.is_alive()
    finally:
        gc.enable()


@both
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_pickles_and_copies(kind, workers):
    loader = kind(Numbers(), 5, num_workers=workers, collate_fn=as_given)
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert [list(map(int, batch)) for batch in again] == [list(map(int, batch)) for batch in loader]


def breaks_for_some(samples):
    if 4 in map(int, samples):
        raise ValueError("number 4 cannot be collated")
    return torch.stack(samples)


def batches_or_none(loader):
    """Return the batches, None for each that has failed."""
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches).tolist())
        except (KeyError, ValueError) as error:
            assert "number" in str(error)
            found.append(None)
        except StopIteration:
            return found


@both
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_or_a_collation_that_fails_costs_its_batch_and_the_next_one_comes(kind, workers):
    found = batches_or_none(kind(Failing(), 4, num_workers=workers))
    assert found == [None, None, [8, 9, 10, 11], None, None]
    found = batches_or_none(kind(Numbers(9), 3, num_workers=workers, collate_fn=breaks_for_some))
    assert found == [[0, 1, 2], None, [6, 7, 8]]


def test_samples_that_fail_cost_a_batch_each_in_order_of_arrival():
    found = batches_or_none(SampleAwareDataLoader(Failing(60), 4, num_workers=3, shuffle=True))
    failed, good = found.count(None), {number for batch in found if batch is not None for number in batch}
    assert len(found) == 15 and 3 <= failed <= 10 and len(good) == 60 - 4 * failed


@both
def test_an_iterable_dataset_is_served_as_torch_serves_it(kind, recwarn):
    assert [batch.tolist() for batch in kind(Stream(), 4, num_workers=1)] == [[0, 1, 2, 3], [4, 5]]
    told = [str(warning.message) for warning in recwarn if "Stream cannot be asked" in str(warning.message)]
    assert len(told) == (kind is SampleAwareDataLoader)


def test_an_iterable_dataset_with_what_it_cannot_have_is_refused():
    with pytest.raises(LoaderConfigError, match=r"Stream .*transforms, order"):
        SampleAwareDataLoader(Stream(), transforms=[double], order="arrival")


def test_two_threads_share_an_iterator():
    batches, found, errors = iter(SampleAwareDataLoader(Numbers(200), 1, num_workers=2)), [], []

    def take():
        try:
            found.extend(int(number) for number in batches)
        except Exception as error:  # noqa: BLE001 - all of them are looked at
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors and sorted(found) == list(range(200))
