"""A collate_fn gets memory of its own: what it changes in place is what it would be with torch's DataLoader."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from loaders import SampleAwareDataLoader

pytestmark = pytest.mark.process

COUNT, BATCH = 160, 4


class Rows(Dataset):
    """Gives two tensors, the same tensor twice, an array and a number."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        same = torch.full((3,), float(index))
        return torch.arange(6.0).view(2, 3) + index, same, same, np.full(4, index), index


def stack_twice(samples):
    clean = torch.stack([one[0] for one in samples])
    noisy = torch.stack([one[0] for one in samples])
    noisy += 1000
    return clean, noisy


def mixup_in_place(samples):
    data, labels = default_collate([one[0] for one in samples]), torch.tensor([one[4] for one in samples])
    data.mul_(0.75).add_(torch.stack([one[0] for one in samples]).flip(0), alpha=0.25)
    return data, labels


def masked_language_model(samples):
    inputs, labels = (torch.stack([torch.as_tensor(one[3]) for one in samples]) for _ in range(2))
    mask = torch.zeros_like(inputs, dtype=torch.bool)
    mask[:, ::2] = True
    labels[~mask] = -100
    inputs[mask] = 103
    return inputs, labels


def change_the_samples_after(samples):
    batch = torch.stack([one[0] for one in samples])
    for one in samples:
        one[0].zero_()
    return batch, [one[0] for one in samples]


def of_views(samples):
    stacked = torch.stack([one[1] for one in samples])
    return stacked, stacked[1:], stacked.view(-1)


def random_program(samples):
    """Change tensors in place and stack them again, in an order that depends on the first sample."""
    rng = random.Random(samples[0][4])
    held: list[Any] = [torch.stack([one[0] for one in samples])]
    for _ in range(12):
        where = rng.randrange(len(held))
        match rng.randrange(7):
            case 0:
                held.append(torch.stack([one[0] for one in samples]))
            case 1:
                held[where].add_(rng.randrange(10))
            case 2:
                held[where].mul_(2)
            case 3:
                samples[rng.randrange(len(samples))][0].sub_(1)
            case 4:
                held.append(held[where].clone())
            case 5:
                held.append(default_collate(samples)[0])
            case 6:
                held.append(torch.cat([one[0].unsqueeze(0) for one in samples]))
    return held


COLLATIONS = [
    stack_twice, mixup_in_place, masked_language_model, change_the_samples_after, of_views, random_program, list, None,
]  # fmt: skip


def plain(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("collate_fn", COLLATIONS, ids=lambda each: getattr(each, "__name__", "default"))
def test_a_collation_gives_what_it_gives_with_torch(collate_fn):
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "collate_fn": collate_fn}
    ours, theirs = SampleAwareDataLoader(Rows(), order="strict", **options), DataLoader(Rows(), **options)
    for mine, expected in zip(ours, theirs, strict=True):
        assert plain(mine) == plain(expected)


def test_what_is_twice_in_a_sample_is_two_tensors_of_the_batch():
    for batch in SampleAwareDataLoader(Rows(), BATCH, shuffle=True, num_workers=2):
        once, twice = batch[1], batch[2]
        once += 1000
        assert torch.equal(once, twice + 1000)


class Own:
    def __init__(self, value):
        self.value = value


class Owned(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return Own(torch.full((3,), float(index)))


def own_collation(samples, *, collate_fn_map=None):
    batch = torch.stack([one.value for one in samples])
    for one in samples:
        one.value.zero_()
    return batch


def test_a_function_registered_with_the_default_collation_may_change_the_samples(monkeypatch):
    registered = {**torch.utils.data._utils.collate.default_collate_fn_map, Own: own_collation}
    monkeypatch.setattr(torch.utils.data._utils.collate, "default_collate_fn_map", registered)
    batches = list(SampleAwareDataLoader(Owned(), BATCH, num_workers=2))
    assert torch.cat(batches)[:, 0].tolist() == list(range(COUNT))
