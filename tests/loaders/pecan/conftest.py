"""Small real files of every workload, and transforms of known size that leave a trace."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import torch
from PIL import Image

from loaders import Samples
from loaders.pipeline import Item, Tensors, Transform


def _samples(root: Path, files: Sequence[tuple[str, bytes]], **columns: Any) -> Samples:
    for path, encoded in files:
        (root / path).write_bytes(encoded)
    sizes = np.array([len(encoded) for _, encoded in files], np.int64)
    return Samples(root, tuple(path for path, _ in files), np.arange(len(files)) % 3, sizes, columns)


@pytest.fixture
def recordings(tmp_path: Path) -> Samples:
    """Eight FLAC files of 0.3 to 0.9 s."""
    files = []
    for k in range(8):
        rng = np.random.default_rng(k)
        buffer = io.BytesIO()
        wave = 0.1 * rng.standard_normal(int(rng.integers(5000, 15000))).astype(np.float32)
        soundfile.write(buffer, wave, 16_000, format="FLAC")
        files.append((f"{k}.flac", buffer.getvalue()))
    return _samples(tmp_path, files, transcript=pa.array(["A", "IT'S", "NO", "THE KING"] * 2))


@pytest.fixture
def volumes(tmp_path: Path) -> Samples:
    """Six volumes of 20 to 24 voxels an edge, with labels."""
    files, labels = [], []
    for k in range(6):
        shape = (1, 20 + k % 3, 22, 24)
        label = np.zeros(shape, np.uint8)
        label[0, 4:10, 5:11, 6:12] = 1 + k % 2
        for path, array, into in (
            (f"{k}_x.npy", np.random.default_rng(k).standard_normal(shape, np.float32), files),
            (f"{k}_y.npy", label, labels),
        ):
            buffer = io.BytesIO()
            np.save(buffer, array)
            into.append((path, buffer.getvalue()))
    _samples(tmp_path, labels)
    return _samples(tmp_path, files, label_path=pa.array([path for path, _ in labels]))


@pytest.fixture
def pictures(tmp_path: Path) -> Samples:
    """Eight pictures with two things each, every other one smaller than 64 pixels."""
    files, boxes, segments = [], [], []
    for k in range(8):
        width, height = (48 + k, 40 + k) if k % 2 else (150 + k, 120 + k)
        coarse = np.random.default_rng(k).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "PNG")
        files.append((f"{k}.png", buffer.getvalue()))
        boxes.append([[3.0, 4.0, 20.0, 15.0], [10.0, 8.0, 24.0, 28.0]])
        segments.append([[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in boxes[-1]])
    return _samples(
        tmp_path,
        files,
        boxes=pa.array(boxes, pa.list_(pa.list_(pa.float32()))),
        categories=pa.array([[1, 3]] * 8, pa.list_(pa.int64())),
        segments=pa.array(segments, pa.list_(pa.list_(pa.list_(pa.float32())))),
    )


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., Samples]:
    """Makes files of so many bytes each."""
    return lambda *sizes: _samples(tmp_path, [(f"{k}.bin", bytes(size)) for k, size in enumerate(sizes)])


@dataclass(frozen=True)
class Pipeline:
    """Files as float32 vectors through any transforms."""

    transforms: tuple[Transform, ...]

    def read(self, samples: Samples, sample_id: int) -> bytes:
        return samples.read(sample_id)

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
