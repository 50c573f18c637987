"""Samples cross processes as they are, and their memory comes back."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from loaders.sample_aware.ipc.arena import Arena
from loaders.sample_aware.ipc.messages import ArenaPlace
from loaders.sample_aware.ipc.serialize import copy_to, layout, load, pack, pack_rest, unpack
from loaders.sample_aware.workers.batch_rows import BatchRows, StackedInPlace


@dataclass
class Sample:
    data: torch.Tensor
    name: str


SAMPLES = {
    "tensor and number": (torch.randn(3, 4), 7),
    "not contiguous": torch.randn(6, 4).t()[1:, ::2],
    "bfloat16 and bool": [torch.randn(5).to(torch.bfloat16), torch.tensor([True, False])],
    "empty and scalar": {"none": torch.empty(0, 3), "one": torch.tensor(2.5), "array": np.array(3)},
    "arrays": (np.arange(6).reshape(2, 3)[:, ::-1], np.array([1 + 2j]), np.array(["a", "bc"])),
    "objects": Sample(torch.arange(4), "x"),
    "with a gradient": torch.ones(2, requires_grad=True),
    "a structured array": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "nothing to share": ("text", 3, None),
    "the same one twice": [torch.ones(2)] * 2,
    "nested": (torch.ones(2), {"boxes": [torch.zeros(3), (np.ones(2), 1.5)], "name": b"x"}),
    "many parts": {"points": list(range(100)), "mask": torch.ones(4)},
    "odd keys": {(1, 2): torch.ones(3), None: 4},
}


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.requires_grad == b.requires_grad and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            same(left, right)
    elif isinstance(a, Sample):
        same((a.data, a.name), (b.data, b.name))
    else:
        assert a == b


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_comes_back_as_it_was(name):
    sample = SAMPLES[name]
    packed = pack(sample)
    begins, total = layout(packed.spec)
    rest = pack_rest(packed, begins)
    memory = torch.zeros(total + len(rest), dtype=torch.uint8)
    for begin, leaf, values in zip(begins, packed.spec, packed.leaves, strict=True):
        copy_to(memory, begin, leaf, values)
    memory[total:] = torch.frombuffer(bytearray(rest), dtype=torch.uint8)
    for copy in (True, False):
        same(load(ArenaPlace(0, total, len(rest)), memory.numpy(), copy=copy), sample)


def test_tensors_are_not_pickled():
    assert len(pack((torch.randn(1000), np.zeros(1000))).payload) < 200
    assert len(pack(Sample(torch.randn(1000), "x")).payload) < 200


def test_what_is_the_same_object_stays_the_same():
    tensor, boxes = torch.ones(2), [1, 2]
    packed = pack((tensor, [tensor], boxes, boxes))
    first, (second,), one, other = unpack(packed.payload, packed.leaves)
    assert first is second and one is other
    assert len(packed.leaves) == 1


@pytest.fixture
def arena():
    made = Arena(1 << 20, 4096)
    yield made
    made.close()


def test_a_block_comes_back_when_nothing_refers_to_it_and_is_used_again(arena):
    block = arena.allocate(100_000)
    view = torch.from_numpy(arena.view(block)).view(torch.float32)[3:].view(-1, 1)[0]
    view.fill_(5)
    gc.collect()
    assert not arena.collect() and arena.live >= 100_000
    del view
    assert arena.collect() and arena.live == 0
    assert arena.allocate(100_001).offset == block.offset


def test_what_is_free_beyond_the_bound_gives_its_pages_back(arena):
    blocks = [arena.allocate(256 << 10) for _ in range(8)]
    for block in blocks:
        arena.memory[block.offset : block.offset + block.size] = 1
    assert os.fstat(arena.descriptor).st_blocks * 512 >= 2 << 20
    for block in blocks:
        arena.free(block)
    assert os.fstat(arena.descriptor).st_blocks * 512 <= (1 << 20) + 4096


def test_lent_memory_outlives_the_arena_and_the_rest_goes():
    arena = Arena(1 << 30, 4096)
    kept, other = arena.allocate(1 << 16), arena.allocate(1 << 16)
    lent = torch.from_numpy(arena.view(kept))
    lent.fill_(3)
    arena.memory[other.offset : other.offset + other.size] = 4
    whole = arena.memory
    arena.close()
    assert (lent == 3).all() and (whole[other.offset : other.offset + other.size] == 0).all()
    del lent
    gc.collect()
    assert (whole[kept.offset : kept.offset + kept.size] == 0).all()


def test_bytes_ahead_are_those_that_the_consumer_does_not_hold(arena):
    one, other = arena.allocate(4096), arena.allocate(8192)
    assert arena.ahead == arena.live == 12288
    arena.release(one)
    assert arena.ahead == 8192
    arena.free(one)
    arena.release(other)
    arena.release(other)
    assert arena.ahead == 0


def test_a_stack_of_rows_is_the_memory_that_they_lie_in():
    samples = [{"x": torch.full((2, 3), float(k)), "y": np.full(2, k)} for k in range(5)]
    expected = default_collate(samples)
    memory = torch.zeros(4096, dtype=torch.uint8)
    rows = BatchRows(memory, 64, 1024, 5)
    found = [rows.add(sample) for sample in samples]
    same(found, samples)
    with StackedInPlace(rows.regions):
        batch = default_collate(found)
    with StackedInPlace(rows.regions):
        part = torch.stack([sample["x"] for sample in found[:3]])
        other = torch.stack([sample["x"] for sample in found[::-1]])
        along = torch.stack([sample["x"] for sample in found], 1)
    first, end = memory.data_ptr() + 64, memory.data_ptr() + 64 + rows.end
    for key in ("x", "y"):
        assert torch.equal(batch[key], expected[key]) and first <= batch[key].data_ptr() < end
    assert torch.equal(part, expected["x"][:3]) and first <= part.data_ptr() < end
    assert torch.equal(other, expected["x"].flip(0)) and not first <= other.data_ptr() < end
    assert torch.equal(along, expected["x"].transpose(0, 1))
    begins, there, _ = rows.begins(pack({"new": torch.zeros(9), **batch}))
    assert there == [1, 2] and begins[0] >= rows.end


def test_samples_that_fit_into_no_row_stay_as_they_are():
    memory = torch.zeros(4096, dtype=torch.uint8)
    rows, large = BatchRows(memory, 0, 2048, 4), torch.ones(1024)
    assert rows.add(large) is large and not rows.regions
    rows = BatchRows(memory, 0, 2048, 4)
    rows.add(torch.ones(3))
    assert rows.add(large) is large
