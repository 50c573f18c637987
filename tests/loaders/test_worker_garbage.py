"""What is garbage in a process is not collected by the workers that are forked from it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from loaders import ImageTransform, PyTorchLoader, Samples
from loaders.pipeline import Item, Tensors, WrappedPipeline

pytestmark = pytest.mark.process


class Ends:
    """Tells which process collects it, as a pipeline of DALI's would end its threads there."""

    def __init__(self, told: Path) -> None:
        self.told, self.itself = told, self

    def __del__(self) -> None:
        with self.told.open("a") as file:
            file.write(f"{os.getpid()}\n")


class Collecting(WrappedPipeline):
    """A pipeline that makes its workers collect garbage."""

    def collate(self, items: Sequence[Item]) -> Tensors:
        gc.collect()
        return self.of.collate(items)


def test_workers_leave_alone_what_their_parent_has_dropped(
    image_tree: Callable[[int], Samples], tmp_path: Path
) -> None:
    samples, pipeline = image_tree(6), Collecting(ImageTransform(size=16))
    gc.collect()
    gc.disable()
    try:
        Ends(tmp_path / "ended")
        with PyTorchLoader(samples=samples, transform=pipeline, batch_size=2, seed=0, num_workers=2) as loader:
            assert sum(len(batch) for batch in loader.epoch(0)) == 6
        assert not (tmp_path / "ended").exists()
        # Nothing is kept for ever in the parent.
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert (tmp_path / "ended").read_text().split() == [str(os.getpid())]
    finally:
        gc.enable()
