"""Workers collate, whether one of them makes a batch by itself or its samples come from all of them."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loaders import SampleAwareDataLoader

pytestmark = pytest.mark.process

COUNT, BATCH = 72, 8
PACES_S = pytest.mark.parametrize("pace_s", [0.0, 0.013], ids=["by_one", "by_all"])
"""What a sample takes: so little that one worker makes a whole batch, or so much that all of them share it."""


class Lengths(Dataset):
    """Gives tensors of different lengths, full of their index."""

    def __init__(self, pace_s: float = 0.0) -> None:
        self.pace_s = pace_s

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        time.sleep(self.pace_s)
        return torch.full((1 + index * 7 % 50,), float(index + 1))


class Texts(Lengths):
    def __getitem__(self, index):
        time.sleep(self.pace_s)
        return "a" * (index * 101 % 7000), index


class HardOne(Lengths):
    """Takes long for one sample in the middle of quick ones."""

    def __getitem__(self, index):
        time.sleep(0.3 if index == 50 else 0)
        return torch.tensor(index), os.getpid()


def pad(samples):
    return pad_sequence(samples, batch_first=True)


def tell_who(samples):
    info = get_worker_info()
    return info.id, info.num_workers, len(info.dataset), os.getpid(), [int(one[0]) for one in samples]


def fail(samples):
    if any(int(one[0]) == 70 for one in samples):
        raise KeyError("seventy cannot be collated")
    return pad(samples)


class Collator:
    """Keeps all that it has seen, and tells whether that is as it was."""

    def __init__(self) -> None:
        self.kept = []

    def __call__(self, samples):
        self.kept.append((samples, [one.clone() for one in samples]))
        return all(torch.equal(a, b) for before, copies in self.kept for a, b in zip(before, copies, strict=True))


@PACES_S
@pytest.mark.parametrize("collate_fn", [pad, list])
@pytest.mark.parametrize("order", ["strict", "arrival"])
def test_batches_of_varying_length_hold_what_torch_s_hold(pace_s, collate_fn, order):
    ours = list(SampleAwareDataLoader(Lengths(pace_s), BATCH, num_workers=2, collate_fn=collate_fn, order=order))
    theirs = list(DataLoader(Lengths(), BATCH, collate_fn=collate_fn))

    def rows(batches):
        each = [row for batch in batches for row in batch]
        return [tuple(row[row == row[0]].tolist()) for row in each]

    assert Counter(rows(ours)) == Counter(rows(theirs))
    if order == "strict":
        assert rows(ours) == rows(theirs)


@PACES_S
def test_samples_without_tensors_come_whole(pace_s):
    loader = SampleAwareDataLoader(Texts(pace_s), BATCH, shuffle=True, num_workers=2, collate_fn=list)
    assert sorted(index for batch in loader for _, index in batch) == list(range(COUNT))
    loader = SampleAwareDataLoader(Texts(pace_s), BATCH, shuffle=True, num_workers=2)
    seen = [(len(text), int(index)) for texts, indices in loader for text, index in zip(texts, indices, strict=True)]
    assert sorted(seen) == sorted((index * 101 % 7000, index) for index in range(COUNT))


@PACES_S
def test_collation_knows_its_worker(pace_s):
    loader = SampleAwareDataLoader(Lengths(pace_s), BATCH, shuffle=True, num_workers=2, collate_fn=tell_who)
    told = list(loader)
    assert {one[1:3] for one in told} == {(2, COUNT)} and {one[0] for one in told} <= {0, 1}
    assert os.getpid() not in {one[3] for one in told}
    assert sorted(index for one in told for index in one[4]) == list(range(1, COUNT + 1))


@PACES_S
def test_an_error_of_collate_fn_is_torch_s_and_the_next_epoch_is_whole(pace_s):
    loader = SampleAwareDataLoader(
        Lengths(pace_s), BATCH, shuffle=True, num_workers=2, collate_fn=fail, persistent_workers=True
    )
    for _ in range(2):
        with pytest.raises(KeyError, match="seventy cannot be collated") as caught:
            list(loader)
        assert "Caught KeyError in DataLoader worker process" in str(caught.value) and "fail" in str(caught.value)


@PACES_S
def test_what_a_collation_keeps_stays_as_it_is(pace_s):
    loader = SampleAwareDataLoader(
        Lengths(pace_s), BATCH, shuffle=True, num_workers=2, collate_fn=Collator(), persistent_workers=True
    )
    for _ in range(2):
        assert all(loader)


def test_a_slow_sample_in_a_batch_of_quick_ones_leaves_the_others_to_others():
    loader = SampleAwareDataLoader(HardOne(), BATCH, num_workers=2)
    assert [index for indices, _ in loader for index in indices.tolist()] == list(range(COUNT))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_collate_fn_that_does_not_pickle_is_torch_s_error(method):
    errors = []
    for kind in (DataLoader, SampleAwareDataLoader):
        loader = kind(
            Lengths(), BATCH, num_workers=1, collate_fn=lambda samples: samples, multiprocessing_context=method
        )
        with pytest.raises(Exception, match="lambda") as caught:
            next(iter(loader))
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def arranged(samples):
    pictures = torch.stack([one[:1].view(1, 1, 1).repeat(3, 4, 5) for one in samples])
    once = torch.stack([one[:1] for one in samples]).expand(-1, 10_000)
    return pictures.to(memory_format=torch.channels_last), once, pictures[:, :, ::2], pictures, pictures


@PACES_S
def test_a_batch_lies_in_memory_as_its_collation_has_arranged_it(pace_s):
    options = {"batch_size": BATCH, "num_workers": 2, "collate_fn": arranged}
    for ours, theirs in zip(
        SampleAwareDataLoader(Lengths(pace_s), order="strict", **options), DataLoader(Lengths(), **options), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert [one.stride() for one in ours[:2]] == [one.stride() for one in theirs[:2]]
        assert ours[0].is_contiguous(memory_format=torch.channels_last)
        assert ours[1].untyped_storage().nbytes() == theirs[1].untyped_storage().nbytes()
        assert ours[3] is ours[4]
        # No tensor keeps the whole batch alive, or is saved with it.
        assert ours[3].untyped_storage().nbytes() == ours[3].nbytes
