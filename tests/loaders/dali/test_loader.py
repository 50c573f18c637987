from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loaders import DaliLoader, ImageTransform, SampleError, Samples
from loaders.dali.engine import DaliEngine
from loaders.dali.loader import Operators
from loaders.pipeline.image import epoch_order
from loaders.shared.dali_images import share_threads

TRANSFORM = ImageTransform(size=32)
Tree = Callable[[int], Samples]


def bytes_read() -> int:
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


@pytest.mark.parametrize("batch_size", [8, 12])
def test_an_epoch_reads_each_file_once_and_nothing_beyond(image_tree: Tree, batch_size: int) -> None:
    samples = image_tree(48)
    with DaliLoader(samples=samples, transform=TRANSFORM, batch_size=batch_size, seed=0, mmap=False) as loader:
        list(loader.epoch(0))
        before = bytes_read()
        list(loader.epoch(1))
        read = bytes_read() - before
    needed = samples.sizes.sum()
    # A batch read beyond the end would be a sixth and more.
    assert needed <= read < 1.1 * needed


def test_the_folder_is_let_go_at_the_end_of_an_epoch(image_tree: Tree) -> None:
    samples = image_tree(8)
    with DaliLoader(samples=samples, transform=TRANSFORM, batch_size=4, seed=0) as loader:
        list(loader.epoch(0))
        held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert not [target for target in held if target.startswith(str(samples.root))]


def test_no_ctrl_c_is_lost_in_pybind11(image_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def has(_: type, name: str) -> None:
        asked.append(name)
        raise AttributeError(name)  # a Ctrl-C that comes here is an exception as well, which pybind11 takes for a no

    monkeypatch.setattr(enum.EnumMeta, "__getattr__", has, raising=False)
    with DaliLoader(samples=image_tree(8), transform=TRANSFORM, batch_size=4, seed=0) as loader:
        assert len(list(loader.epoch(0))) == 2
    assert not [name for name in asked if "pybind11" in name]


def test_after_a_failed_sample_the_next_epoch_runs(image_tree: Tree) -> None:
    samples = image_tree(20)
    whole = samples.path(5).read_bytes()
    samples.path(5).write_bytes(b"")
    with DaliLoader(samples=samples, transform=TRANSFORM, batch_size=4, seed=0) as loader:
        with pytest.raises(SampleError, match="sample 5 "):
            list(loader.epoch(0))
        samples.path(5).write_bytes(whole)
        assert sum(len(batch) for batch in loader.epoch(0)) == 20


def test_a_file_name_of_any_kind_is_read(image_tree: Tree) -> None:
    samples = image_tree(3)
    names = ("with space.jpg", "übung é 漢.jpg", "no extension")
    for index, name in enumerate(names):
        samples.path(index).rename(samples.root / name)
    renamed = Samples(samples.root, names, samples.labels, samples.sizes)
    with DaliLoader(samples=renamed, transform=TRANSFORM, batch_size=3, seed=0) as loader:
        assert len(next(loader.epoch(0))) == 3


@pytest.mark.parametrize("operators", ["native", "python"])
def test_pipelines_are_built_once_and_again_after_an_epoch_that_was_broken_off(
    image_tree: Tree, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    build = DaliEngine._build_all
    monkeypatch.setattr(DaliEngine, "_build_all", lambda *args: built.append(build(*args)) or built[-1])
    with DaliLoader(samples=image_tree(20), transform=TRANSFORM, batch_size=8, seed=0, operators=operators) as loader:
        # Python's operators show what they bring with their first batch.
        assert len(built) == (operators == "native")
        for epoch in range(3):
            assert [len(batch) for batch in loader.epoch(epoch)] == [8, 8, 4]
        assert len(built) == 1
        next(loader.epoch(3))
        for epoch in range(2):
            assert [len(batch) for batch in loader.epoch(epoch)] == [8, 8, 4]
        assert len(built) == 2


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 9, 20])
def test_batches_of_pipelines_that_take_turns_come_in_their_order(
    image_tree: Tree, num_threads: int, count: int
) -> None:
    samples = image_tree(count)
    with DaliLoader(samples=samples, transform=TRANSFORM, batch_size=4, seed=0, num_threads=num_threads) as loader:
        for epoch in range(3):
            given = [batch.ids.tolist() for batch in loader.epoch(epoch)]
            assert [len(ids) for ids in given] == [4] * (count // 4) + [count % 4] * (count % 4 > 0)
            assert [one for ids in given for one in ids] == epoch_order(count, seed=0, epoch=epoch).tolist()


def test_as_many_samples_are_read_at_once_as_there_are_threads_that_read(image_tree: Tree) -> None:
    readers = threading.Barrier(6)

    def meet(image: object) -> torch.Tensor:
        readers.wait(timeout=60)
        return torch.zeros(3)

    # Three batches are under way, so that the sixth reader meets the first.
    options = {"batch_size": 4, "seed": 0, "num_threads": 1, "read_threads": 6}
    with DaliLoader(samples=image_tree(24), transform=meet, **options) as loader:
        assert [len(batch) for batch in loader.epoch(0)] == [4] * 6


def test_an_even_number_of_threads_is_shared_by_two_pipelines_on_a_cpu() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert [share_threads(count, cpu) for count in (1, 2, 3, 8)] == [[1], [1, 1], [3], [4, 4]]
    assert share_threads(8, cuda) == [8]
