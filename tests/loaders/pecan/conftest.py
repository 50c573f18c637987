"""Small real files of every workload, and transforms of known size that leave a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from loaders import Samples
from loaders.pipeline import FilePipeline, Item, Tensors, Transform
from tests.loaders.small_data import make_pictures, make_sounds, make_volumes, write_samples


@pytest.fixture
def recordings(tmp_path: Path) -> Samples:
    """Eight FLAC files of 0.3 to 0.9 s."""
    return make_sounds(tmp_path, [5000 + 1237 * k % 10_000 for k in range(8)])


@pytest.fixture
def volumes(tmp_path: Path) -> Samples:
    """Six volumes of 20 to 28 voxels an edge, with labels."""
    return make_volumes(tmp_path, 6)


@pytest.fixture
def pictures(tmp_path: Path, encode_image: Callable[..., bytes]) -> Samples:
    """Eight pictures with two things each, every other one smaller than 64 pixels."""
    sizes = [(48 + k, 40 + k) if k % 2 else (150 + k, 120 + k) for k in range(8)]
    encoded = [encode_image(*size, seed=k, format="PNG") for k, size in enumerate(sizes)]
    return make_pictures(tmp_path, encoded, [[[3.0, 4.0, 20.0, 15.0], [10.0, 8.0, 24.0, 28.0]]] * 8)


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., Samples]:
    """Makes files of so many bytes each."""
    return lambda *sizes: write_samples(tmp_path, [(f"{k}.bin", bytes(size)) for k, size in enumerate(sizes)])


@dataclass(frozen=True)
class Pipeline(FilePipeline):
    """Files as float32 vectors through any transforms."""

    transforms: tuple[Transform, ...]

    def decode(self, encoded: bytes, samples: Samples, sample_id: int) -> tuple[torch.Tensor, dict[str, Any]]:
        return torch.full((len(encoded),), float(sample_id)), {}

    def collate(self, items: Sequence[Item]) -> Tensors:
        lengths = torch.tensor([len(item.data) for item in items])
        return Tensors(torch.stack([item.data.sum() for item in items]), lengths, {})


@dataclass(frozen=True)
class Times:
    """Makes a vector `factor` times as long."""

    factor: float
    name: str
    commutes_with: frozenset[str] = frozenset()
    barrier: bool = False

    def __call__(self, item: Item) -> Item:
        item.data = item.data.new_ones(round(len(item.data) * self.factor))
        return item


@pytest.fixture(name="Pipeline")
def pipeline_fixture() -> type[Pipeline]:
    return Pipeline


@pytest.fixture(name="Times")
def times_fixture() -> type[Times]:
    return Times


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Small tensors are worked on faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
