"""SampleAwareDataLoader does what torch's DataLoader does, and has arguments of its own."""

from __future__ import annotations

import multiprocessing
import random
import time
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from loaders import SampleAwareDataLoader
from loaders.sample_aware import iterators

pytestmark = pytest.mark.process

COUNT = 23


class Squares(Dataset):
    """Gives a tensor, a number and a name."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"x": torch.full((3, 5), float(index)), "y": index * index, "name": f"sample {index}"}


class Arrays(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return np.full((4,), index, np.float32), np.int64(index)


class Workers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        info = get_worker_info()
        time.sleep(0.02)
        return info.id, info.num_workers, len(info.dataset)


class Draws(Dataset):
    """Draws from every generator that transforms draw from."""

    def __len__(self):
        return 4 * COUNT

    def __getitem__(self, index):
        return index, torch.rand(()).item(), random.random(), np.random.rand()


def draws_slowly(drawn):
    """Take long for every fifth sample, and draw more numbers."""
    time.sleep(0.03 if drawn[0] % 5 == 0 else 0.002)
    return *drawn, torch.rand(()).item(), random.random(), np.random.rand()


def as_list(samples):
    return list(samples)


def plain(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Squares(), Arrays()], ids=["dicts", "arrays"])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 5, "drop_last": True}, {"batch_size": None}])
def test_batches_in_order_are_those_of_torch(workers, dataset, options):
    ours = SampleAwareDataLoader(dataset, num_workers=workers, **options)
    theirs = DataLoader(dataset, **options)
    assert len(ours) == len(theirs)
    assert plain(list(ours)) == plain(list(theirs))


@pytest.mark.parametrize("persistent", [False, True])
def test_the_same_generator_gives_the_same_epochs_as_torch(persistent):
    def orders(kind, **options):
        generator = torch.Generator().manual_seed(5)
        loader = kind(
            Squares(), batch_size=4, shuffle=True, generator=generator, num_workers=2, persistent_workers=persistent,
            **options,
        )  # fmt: skip
        return [[batch["y"].tolist() for batch in loader] for _ in range(3)]

    assert orders(SampleAwareDataLoader, order="strict") == orders(DataLoader)


def test_every_shuffled_epoch_has_every_sample_once_and_full_batches():
    loader = SampleAwareDataLoader(Squares(), batch_size=4, shuffle=True, num_workers=3, persistent_workers=True)
    for _ in range(4):
        batches = list(loader)
        assert Counter(name for batch in batches for name in batch["name"]) == Counter(
            f"sample {k}" for k in range(COUNT)
        )
        assert sorted(len(batch["name"]) for batch in batches) == [3, 4, 4, 4, 4, 4]
        for batch in batches:
            assert batch["x"].shape[1:] == (3, 5) and torch.equal(batch["x"][:, 0, 0].long() ** 2, batch["y"])


def test_attributes_that_are_set_later_count_as_in_torch():
    loader = SampleAwareDataLoader(Squares(), batch_size=4, num_workers=0)
    loader.num_workers, loader.prefetch_factor, loader.order = 2, 2, "arrival"
    assert sorted(int(y) for batch in loader for y in batch["y"]) == [n * n for n in range(COUNT)]
    assert loader.stats()["workers"] == 2
    loader.num_workers = 1
    assert [*loader] and loader.stats()["workers"] == 1


def test_a_sample_that_another_worker_goes_on_with_draws_what_it_would_have_drawn():
    def epoch(workers):
        loader = SampleAwareDataLoader(
            Draws(), 4, shuffle=True, num_workers=workers, transforms=[draws_slowly] * 3, collate_fn=as_list,
            generator=torch.Generator().manual_seed(1), slow_timeout_s=0.01,
        )  # fmt: skip
        return sorted(sample for batch in loader for sample in batch), loader.stats()["parked_samples"]

    (alone, _), (shared, parked) = epoch(1), epoch(3)
    assert parked > 0
    assert shared == alone


def test_order_follows_the_sampler_unless_told():
    def order(**options):
        return SampleAwareDataLoader(Squares(), **options)._order()

    assert order() == "strict" and order(shuffle=True) == "arrival"
    assert order(batch_sampler=BatchSampler(RandomSampler(Squares()), 4, False)) == "arrival"
    assert order(batch_sampler=[[1, 2], [3]]) == "strict"
    assert order(in_order=False) == "arrival" and order(in_order=False, order="strict") == "strict"
    assert order(sampler=SequentialSampler(Squares()), order="arrival") == "arrival"
    assert order(sampler=DistributedSampler(Squares(), 2, 0)) == "arrival"
    assert order(sampler=DistributedSampler(Squares(), 2, 0, shuffle=False)) == "strict"


class Pairs(RandomSampler):
    """Draws two samples of the same third of the dataset one after the other."""

    def __iter__(self):
        third = COUNT // 3
        for place in torch.randperm(3 * (third // 2)).tolist():
            first = place % 3 + 6 * (place // 3)
            yield from (first, first + 3)


class DistributedPairs(DistributedSampler):
    __iter__ = Pairs.__iter__


def uneven(sample):
    time.sleep(0.01 if sample["y"] % 4 else 0)
    return sample


@pytest.mark.parametrize("sampler", [Pairs(Squares()), DistributedPairs(Squares(), 2, 0)], ids=["own", "distributed"])
@pytest.mark.parametrize("in_batch_sampler", [False, True])
def test_a_sampler_that_derives_from_a_random_one_of_torch_keeps_its_batches(sampler, in_batch_sampler):
    how = {"sampler": sampler, "batch_size": 2}
    how = {"batch_sampler": BatchSampler(sampler, 2, False)} if in_batch_sampler else how
    loader = SampleAwareDataLoader(Squares(), num_workers=2, transforms=[uneven], **how)
    assert loader._order() == "strict"
    batches = [[int(name.split()[1]) for name in batch["name"]] for batch in loader]
    assert all(first % 3 == second % 3 for first, second in batches)


def test_a_batch_sampler_says_which_samples_share_a_batch():
    batches = [[3, 1], [2], [7, 8, 9], [0]]
    loader = SampleAwareDataLoader(Squares(), batch_sampler=batches, num_workers=2)
    assert [batch["y"].tolist() for batch in loader] == [[k * k for k in batch] for batch in batches]


class Named(Dataset):
    """Is asked by name, and takes long for some."""

    def __len__(self):
        return COUNT

    def __getitem__(self, name):
        time.sleep(0.02 if int(name[-1]) == 3 else 0.001)
        return name


def test_keys_may_be_anything_of_any_length():
    names = [f"{'a long way down ' * 20}{k}" for k in range(COUNT)]
    loader = SampleAwareDataLoader(
        Named(), batch_size=4, sampler=names, num_workers=2, order="arrival", transforms=[str, pause, str],
        slow_timeout_s=0.01,
    )  # fmt: skip
    assert Counter(name for batch in loader for name in batch) == Counter(names)
    assert loader.stats()["parked_samples"] > 0


def pause(sample):
    time.sleep(0.005)
    return sample


def test_workers_know_who_they_are_and_are_initialised(tmp_path):
    def init(worker):
        (tmp_path / str(worker)).touch()

    loader = SampleAwareDataLoader(Workers(), num_workers=2, worker_init_fn=init)
    told = [tuple(int(number) for number in batch) for batch in loader]
    assert {one[1:] for one in told} == {(2, 40)} and {one[0] for one in told} == {0, 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_an_error_of_the_dataset_is_raised_as_it_is_with_its_traceback():
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 7:
                raise KeyError("seven is missing")
            return super().__getitem__(index)

    loader = SampleAwareDataLoader(Broken(), batch_size=4, num_workers=2)
    with pytest.raises(KeyError, match="seven is missing") as caught:
        list(loader)
    assert "sample 7" in str(caught.value) and "__getitem__" in str(caught.value)


def test_a_worker_init_that_raises_is_told():
    def init(_worker):
        raise OSError("no such licence")

    with pytest.raises(OSError, match="no such licence"):
        list(SampleAwareDataLoader(Squares(), num_workers=2, worker_init_fn=init))


def test_timeout_is_of_a_batch():
    class Hanging(Squares):
        def __getitem__(self, index):
            time.sleep(30)

    loader = SampleAwareDataLoader(Hanging(), num_workers=2, timeout=0.3)
    with pytest.raises(RuntimeError, match=r"0\.3 seconds"):
        next(iter(loader))


def test_it_can_be_made_again_from_its_attributes_as_trainers_do():
    import inspect

    loader = SampleAwareDataLoader(
        Squares(), batch_size=4, transforms=[dict], order="strict", num_workers=2, slow_timeout_s=1.0
    )
    assert isinstance(loader, DataLoader)
    arguments = inspect.signature(type(loader).__init__).parameters
    given = {name: getattr(loader, name) for name in arguments if name not in ("self", "batch_size", "shuffle")}
    given |= {"batch_sampler": BatchSampler(DistributedSampler(Squares(), 2, 1, shuffle=False), 4, False)}
    del given["sampler"]
    again = type(loader)(**given)
    assert [batch["y"].shape[0] for batch in again] == [4, 4, 4]
    assert (again.transforms, again.order, again.slow_timeout_s) == ((dict,), "strict", 1.0)


def test_an_opaque_dataset_is_told_of_once():
    from loaders.sample_aware import dataloader

    dataloader._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            list(SampleAwareDataLoader(Squares(), shuffle=True, num_workers=1))
        list(SampleAwareDataLoader(Squares(), shuffle=True, num_workers=1, transforms=[dict]))
    assert ["does all of a sample's work in one call" in str(one.message) for one in caught].count(True) == 1


class Noted(Dataset):
    """Counts, over all processes, how many samples were asked for."""

    def __init__(self):
        self.asked = multiprocessing.Value("i", 0)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with self.asked:
            self.asked.value += 1
        return torch.tensor(index)


class Slow(RandomSampler):
    """Takes its time over the first sample."""

    def __iter__(self):
        time.sleep(0.1)
        yield from super().__iter__()


@pytest.mark.parametrize("order", ["arrival", "strict"])
@pytest.mark.parametrize("taken", [1, 3])
def test_no_more_batches_are_begun_than_torch_would_hold(taken, order):
    dataset = Noted()
    batches = iter(
        SampleAwareDataLoader(dataset, 2, sampler=Slow(dataset), num_workers=2, prefetch_factor=2, order=order)
    )
    for _ in range(taken):
        next(batches)
    asked = -1
    while asked != dataset.asked.value:
        asked = dataset.asked.value
        time.sleep(0.2)
    # Two for each of two workers, less the one that is still the consumer's when the next is handed over.
    assert asked == 2 * (taken + 3)


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_batches_that_are_page_locked_come_whole_and_an_error_of_that_is_raised(monkeypatch, order):
    # Page-locked memory needs an accelerator, so another function stands for it.
    monkeypatch.setattr(SampleAwareDataLoader, "pins", True)
    monkeypatch.setattr(iterators, "pin_memory", lambda batch: batch["y"].tolist())
    loader = SampleAwareDataLoader(Squares(), 4, num_workers=2, order=order)
    assert sorted(number for batch in loader for number in batch) == [k * k for k in range(COUNT)]
    monkeypatch.setattr(iterators, "pin_memory", lambda batch: batch["none"])
    with pytest.raises(KeyError, match="none"):
        list(loader)
