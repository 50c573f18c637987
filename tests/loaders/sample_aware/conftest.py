"""A pipeline whose samples take the time that they are told to, and tell that they were worked on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaders import Item, Samples, Tensors


@dataclass(frozen=True)
class Step:
    """Sleeps for some samples, and notes that it has run."""

    name: str
    seconds: dict[int, float] = field(default_factory=dict)
    usual_s: float = 0.0
    notes: Path | None = None

    def __call__(self, item: Item) -> Item:
        if self.notes is not None:
            descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{self.name} {item.id} {item.epoch} {os.getpid()}\n".encode())
            os.close(descriptor)
        time.sleep(self.seconds.get(item.id, self.usual_s))
        return item


@dataclass(frozen=True)
class Hang(Step):
    """Never returns from some samples."""

    def __call__(self, item: Item) -> Item:
        super().__call__(Item(item.id, 0, item.epoch, None))
        if item.id in self.seconds:
            threading.Event().wait()
        return item


@dataclass(frozen=True)
class ToTensor:
    """From a picture to what is collated."""

    name: str = "ToTensor"

    def __call__(self, item: Item) -> Item:
        item.data = torch.from_numpy(np.asarray(item.data).copy())
        return item


@dataclass(frozen=True)
class Timed:
    """Gives pictures that tell the sample's id, and whatever steps come before they are tensors."""

    steps: tuple[Any, ...] = ()
    side: int = 8

    @property
    def transforms(self) -> tuple[Any, ...]:
        return *self.steps, ToTensor()

    def read(self, samples: Samples, sample_id: int) -> bytes:
        return b""

    def decode(self, encoded: bytes, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        return Image.new("L", (self.side, self.side), sample_id % 256), {"label": sample_id}

    def collate(self, items: Any) -> Tensors:
        labels = torch.tensor([item.target["label"] for item in items])
        return Tensors(torch.stack([item.data for item in items]), labels, {})


@pytest.fixture
def make_samples(tmp_path: Path) -> Callable[[int], Samples]:
    """Samples without files."""

    def make(count: int) -> Samples:
        names = tuple(f"{k}.png" for k in range(count))
        return Samples(tmp_path, names, np.zeros(count, np.int64), np.ones(count, np.int64))

    return make


@pytest.fixture(scope="session")
def timed() -> type[Timed]:
    return Timed


@pytest.fixture(scope="session")
def step() -> type[Step]:
    return Step


@pytest.fixture(scope="session")
def hang() -> type[Hang]:
    return Hang
