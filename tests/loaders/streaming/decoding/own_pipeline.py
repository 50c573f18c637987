"""A pipeline of one's own, as docs/workloads.md describes it, in a module that a process of its own can import."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from loaders.base import Samples
from loaders.pipeline import Item, Tensors, UndecodableError

VICTIM = 5


@dataclass(frozen=True)
class Stretch:
    """Repeats a sample's numbers as often as chance has it, so that no two are of one length."""

    name: str = "Stretch"

    def __call__(self, item: Item) -> Item:
        """Return the item with a tensor."""
        item.data = torch.from_numpy(np.repeat(item.data, int(item.generator(self.name).integers(1, 5))))
        return item


@dataclass(frozen=True)
class Trip:
    """Does something wrong with one sample."""

    fault: str
    name: str = "Trip"

    def __call__(self, item: Item) -> Item:
        """Fail, hang, or say something."""
        if item.id == VICTIM:
            if self.fault == "hangs":
                threading.Event().wait(60)
            if self.fault == "raises":
                raise ValueError("what a transform may raise")
            print("said by a pipeline", flush=True)
        return item


@dataclass(frozen=True)
class OwnPipeline:
    """Reads two files of numbers and what the columns tell."""

    fault: str = ""

    @property
    def transforms(self) -> tuple[Any, ...]:
        """The steps."""
        return Stretch(), Trip(self.fault)

    def read(self, samples: Samples, sample_id: int) -> Any:
        """Return both files."""
        return samples.read(sample_id), samples.read(sample_id, "other_path")

    def decode(self, encoded: Any, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        """Return the numbers of the first file; the target has the rest, and every column but the path."""
        if not encoded[0]:
            raise UndecodableError("it is empty")
        told = {name: column[sample_id].as_py() for name, column in samples.columns.items()}
        told["other"] = torch.tensor(list(bytes(encoded[1])), dtype=torch.uint8)
        told["label"] = int(samples.labels[sample_id])
        told["path"], told["size"] = samples.paths[sample_id], int(samples.sizes[sample_id])
        return np.frombuffer(encoded[0], np.uint8).astype(np.float32), told

    def collate(self, items: Any) -> Tensors:
        """Join all that is of different lengths in one row, and what was told as text."""
        told = "\n".join(repr(sorted((k, v) for k, v in one.target.items() if k != "other")) for one in items)
        extra = {
            "lengths": torch.tensor([len(item.data) for item in items]),
            "other": torch.cat([item.target["other"] for item in items]),
            "told": torch.tensor(list(told.encode()), dtype=torch.uint8),
        }
        labels = torch.tensor([item.target["label"] for item in items])
        return Tensors(torch.cat([item.data for item in items]), labels, extra)
