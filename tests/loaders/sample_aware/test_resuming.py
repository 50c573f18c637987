"""A loader that goes on from a state gives what an uninterrupted one gives, in the epochs after it too."""

from __future__ import annotations

import pickle
import random
import time

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler, WeightedRandomSampler

from loaders import LoaderConfigError, SampleAwareDataLoader

pytestmark = pytest.mark.process

COUNT = 22


class Draws(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index, torch.rand(()).item()


class Endless(Sampler):
    """Has no end and no length."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(COUNT, generator=generator).tolist()


class Shuffled(Sampler):
    """Draws from Python's own random numbers."""

    def __len__(self):
        return COUNT

    def __iter__(self):
        order = list(range(COUNT))
        random.shuffle(order)
        return iter(order)


class Many(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return index


def plain(batches):
    return [[column.tolist() for column in batch] for batch in batches]


def through_pickle(loader):
    return pickle.loads(pickle.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("seed", "options", "taken"),
    [
        (None, {"num_workers": 0}, 2),
        (5, {"num_workers": 0}, 2),
        (None, {"num_workers": 2}, 0),
        (5, {"num_workers": 2}, 6),
        (None, {"num_workers": 2, "persistent_workers": True}, 2),
        (5, {"num_workers": 2, "persistent_workers": True}, 2),
    ],
    ids=str,
)
def test_the_epoch_that_was_begun_and_those_after_it_are_the_same(seed, options, taken):
    def make():
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return SampleAwareDataLoader(Draws(), 4, shuffle=True, order="strict", generator=generator, **options)

    columns = slice(None) if options["num_workers"] or seed is None else slice(1)

    def told(batches):
        # Without workers samples draw from the process's own generator, which is the program's to keep.
        return [batch[columns] for batch in plain(batches)]

    torch.manual_seed(1)
    loader = make()
    list(loader)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = through_pickle(loader)
    expected = [told(batches), told(loader), told(loader)]
    torch.manual_seed(99)
    resumed = make()
    resumed.load_state_dict(state)
    assert [told(resumed) for _ in range(3)] == expected


def test_a_state_between_two_epochs_has_the_next_one_be_the_same():
    def make():
        generator = torch.Generator().manual_seed(2)
        return SampleAwareDataLoader(Draws(), 4, shuffle=True, order="strict", generator=generator, num_workers=2)

    loader = make()
    list(loader)
    state = through_pickle(loader)
    expected = plain(loader)
    resumed = make()
    resumed.load_state_dict(state)
    assert plain(resumed) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_an_endless_sampler_is_small_and_goes_on(workers):
    def make(seed=3):
        return SampleAwareDataLoader(Draws(), 4, sampler=Endless(seed), num_workers=workers)

    batches = iter(loader := make())
    for _ in range(7):
        next(batches)
    state = through_pickle(loader)
    expected = [next(batches)[0].tolist() for _ in range(9)]
    resumed = make()
    resumed.load_state_dict(state)
    batches = iter(resumed)
    assert [next(batches)[0].tolist() for _ in range(9)] == expected
    other = make(seed=4)
    other.load_state_dict(state)
    with pytest.raises(LoaderConfigError, match="now draws others"):
        iter(other)


def test_the_state_of_a_million_samples_is_some_kilobytes_at_once():
    loader = SampleAwareDataLoader(Many(), 32, shuffle=True, num_workers=2)
    batches = iter(loader)
    next(batches)
    began = time.monotonic()
    state = pickle.dumps(loader.state_dict())
    # It takes a millisecond; to list what is left takes seconds.
    assert time.monotonic() - began < 0.5 and len(state) < 40_000


@pytest.mark.parametrize(
    "samplers",
    [
        lambda: {"sampler": WeightedRandomSampler(torch.ones(COUNT), COUNT), "batch_size": 4},
        lambda: {"sampler": DistributedSampler(Draws(), 2, 1, seed=4), "batch_size": 2},
        lambda: {"sampler": Shuffled(), "batch_size": 4},
        lambda: {"batch_sampler": BatchSampler(Shuffled(), 3, False)},
    ],
    ids=["weighted", "distributed", "of one's own", "batches of one's own"],
)
def test_samplers_of_every_kind_go_on(samplers):
    def make():
        return SampleAwareDataLoader(Draws(), **samplers(), order="strict", num_workers=2)

    loader = make()
    batches = iter(loader)
    next(batches), next(batches)
    state = through_pickle(loader)
    expected = [batch[0] for batch in plain(batches)]
    random.seed(8)
    resumed = make()
    resumed.load_state_dict(state)
    assert [batch[0] for batch in plain(resumed)] == expected
