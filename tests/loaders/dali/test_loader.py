from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loaders import DaliLoader, ImageTransform, SampleError, Samples
from loaders.dali.engine import DaliEngine
from loaders.dali.loader import Operators

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
    paths = []
    for index, name in enumerate(["with space.jpg", "übung é 漢.jpg", "no extension"]):
        target = samples.root / name
        samples.path(index).rename(target)
        paths.append(name)
    renamed = Samples(samples.root, tuple(paths), samples.labels, samples.sizes)
    with DaliLoader(samples=renamed, transform=TRANSFORM, batch_size=3, seed=0) as loader:
        assert len(next(loader.epoch(0))) == 3


@pytest.mark.parametrize("operators", ["native", "python"])
def test_a_pipeline_is_built_once_and_again_after_an_epoch_that_was_broken_off(
    image_tree: Tree, operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    build = DaliEngine._build
    monkeypatch.setattr(DaliEngine, "_build", lambda *args: built.append(build(*args)) or built[-1])
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
