"""A process that was forked keeps the batches that it has, whatever becomes of their memory in its parent."""

from __future__ import annotations

import gc
import multiprocessing
import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from loaders import SampleAwareDataLoader
from loaders.sample_aware.ipc.arena import _LENT, Arena

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:.*all of a sample's work")]
both = pytest.mark.parametrize("kind", [DataLoader, SampleAwareDataLoader], ids=["torch", "ours"])
FORK = multiprocessing.get_context("fork")


class Planes(Dataset):
    """Gives planes of one number each."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        return torch.full((16, 16), float(index)), index


class Held(Dataset):
    """Gives batches of another loader."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def whole(planes, labels):
    return torch.equal(planes, labels[:, None, None].expand_as(planes).float())


def tell(planes, labels, may_look, told):
    """Look at a batch after the parent has used its memory for others."""
    assert may_look.wait(60)
    told.put((whole(planes, labels), labels.tolist()))


@both
def test_a_child_keeps_a_batch_that_its_parent_drops(kind):
    may_look, told, children, expected = FORK.Event(), FORK.SimpleQueue(), [], []
    for planes, labels in kind(Planes(), 8, shuffle=True, num_workers=2):
        if len(children) < 6:
            children.append(FORK.Process(target=tell, args=(planes, labels, may_look, told)))
            children[-1].start()
            expected.append(labels.tolist())
    del planes, labels
    gc.collect()
    may_look.set()
    found = [told.get() for _ in children]
    for child in children:
        child.join()
    assert all(right for right, _ in found)
    assert sorted(labels for _, labels in found) == sorted(expected)


@both
def test_workers_of_another_loader_keep_the_batches_in_their_dataset(kind):
    loader = kind(Planes(), 8, shuffle=True, num_workers=2, persistent_workers=True)
    held = list(loader)
    others = kind(Held(held), None, num_workers=2, persistent_workers=True)
    expected = [labels.tolist() for _, labels in held]
    assert [labels.tolist() for _, labels in others] == expected
    del held
    others.dataset.batches = [None] * len(others)
    gc.collect()
    for _ in loader:
        pass
    again = list(others)
    assert [labels.tolist() for _, labels in again] == expected
    assert all(whole(*batch) for batch in again)


def fork(work):
    """Return what `work` returns in a forked process: a number below 256."""
    child = os.fork()
    if not child:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def arena():
    made = Arena(1 << 30, 4096)
    yield made
    made.close()


def lend(arena, number, nbytes=1 << 20):
    """Return a view of a block of the arena, full of one number, and the block."""
    block = arena.allocate(nbytes)
    arena.memory[block.offset : block.offset + block.size] = number
    return arena.view(block), block


def stored_bytes(arena):
    return os.fstat(arena.descriptor).st_blocks * 512


def test_a_block_is_the_same_memory_before_and_after_a_fork_and_shared_when_it_has_come_back(arena):
    view, block = lend(arena, 5)
    assert fork(lambda view=view: int(view.max())) == 5
    view[0] = 6
    assert (view[0], view[1]) == (6, 5)
    del view
    arena.collect()
    again = arena.allocate(1 << 20)
    assert again.offset == block.offset
    arena.memory[again.offset] = 9
    assert os.pread(arena.descriptor, 1, again.offset) == b"\x09"


def test_forks_take_no_more_memory_than_what_is_lent(arena):
    for number in range(1, 9):
        view, _ = lend(arena, number)
        assert fork(lambda view=view: int(view[-1])) == number
        assert stored_bytes(arena) == 0
        del view
        arena.collect()
    assert arena.live == 0


def test_a_child_has_no_blocks_of_its_parent_to_change(arena):
    view, _ = lend(arena, 3)
    # Another thread may lend blocks while the process forks: the child must not take their pages from the parent.
    assert fork(lambda: len(_LENT)) == 0
    assert int(view.min()) == 3
