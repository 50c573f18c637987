"""Small datasets of the three workloads whose samples are no single images."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from loaders import Batch, DaliLoader, Samples
from loaders.pipeline import Pipeline, Tensors, load_item

WORDS = ("A", "IT'S", "THE KING", "WHO CAME", "NO")


class Through(Protocol):
    """Runs an epoch through DALI, and the samples of each batch through the pipeline itself."""

    def __call__(self, samples: Samples, pipeline: Pipeline, **options: Any) -> list[tuple[Batch, Tensors]]: ...


@pytest.fixture
def through() -> Through:
    def run(samples: Samples, pipeline: Pipeline, **options: Any) -> list[tuple[Batch, Tensors]]:
        with DaliLoader(samples=samples, transform=pipeline, seed=3, **{"batch_size": 4, **options}) as loader:
            assert loader.notes[0].startswith("DALI's operators run ")
            batches = list(loader.epoch(2))
        assert sorted(int(k) for batch in batches for k in batch.ids) == list(range(len(samples)))
        return [(batch, expected(samples, pipeline, batch)) for batch in batches]

    def expected(samples: Samples, pipeline: Pipeline, batch: Batch) -> Tensors:
        return pipeline.collate([load_item(pipeline, samples, int(k), seed=3, epoch=2) for k in batch.ids])

    return run


@pytest.fixture
def volumes(tmp_path: Path) -> Callable[..., Samples]:
    """Makes cases in MLPerf's form, each of another shape."""

    def make(count: int, edge: int = 20) -> Samples:
        paths, label_paths = [], []
        for k in range(count):
            shape = (1, edge + k % 3, edge + 2, edge + 4 + k % 5)
            labels = np.zeros(shape, np.uint8)
            labels[0, 4:8, 5:9, 6:10] = 1 + k % 2
            paths.append(f"case_{k:05d}_x.npy")
            label_paths.append(f"case_{k:05d}_y.npy")
            np.save(tmp_path / paths[-1], np.random.default_rng(k).standard_normal(shape, np.float32))
            np.save(tmp_path / label_paths[-1], labels)
        return _samples(tmp_path, paths, label_path=pa.array(label_paths))

    return make


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[Sequence[bytes]], Samples]:
    """Makes a dataset of encoded pictures with none, one and several things."""

    def make(encoded: Sequence[bytes]) -> Samples:
        paths, boxes, categories, segments = [], [], [], []
        for k, content in enumerate(encoded):
            paths.append(f"{k:012d}.jpg")
            (tmp_path / paths[-1]).write_bytes(content)
            boxes.append([[3.0 + j, 4.0, 20.0, 15.0 + j] for j in range(k % 4)])
            categories.append([1 + 2 * j for j in range(k % 4)])
            segments.append([[[3.0 + j, 4.0, 23.0 + j, 4.0, 23.0, 19.0 + j]] for j in range(k % 4)])
        return _samples(
            tmp_path,
            paths,
            boxes=pa.array(boxes, pa.list_(pa.list_(pa.float32()))),
            categories=pa.array(categories, pa.list_(pa.int64())),
            segments=pa.array(segments, pa.list_(pa.list_(pa.list_(pa.float32())))),
        )

    return make


@pytest.fixture
def sounds(tmp_path: Path) -> Callable[[Sequence[int]], Samples]:
    """Makes FLAC files of so many samples each."""

    def make(lengths: Sequence[int]) -> Samples:
        paths = []
        for k, length in enumerate(lengths):
            paths.append(f"{k}.flac")
            (tmp_path / paths[-1]).write_bytes(sound(length, k))
        return _samples(tmp_path, paths, transcript=pa.array([WORDS[k % len(WORDS)] for k in range(len(lengths))]))

    return make


def sound(length: int, seed: int) -> bytes:
    """Encode noise that falls with frequency, with a tone in it."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(rng.standard_normal(length))
    tone = np.sin(2 * np.pi * 440 * np.arange(length) / 16_000) + rng.standard_normal(length) * 0.1
    wave = (0.1 * tone + 0.002 * (walk - walk.mean())).astype(np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, wave.clip(-1, 1), 16_000, format="FLAC")
    return buffer.getvalue()


def _samples(root: Path, paths: Sequence[str], **columns: Any) -> Samples:
    sizes = np.array([(root / path).stat().st_size for path in paths], np.int64)
    return Samples(root, tuple(paths), np.zeros(len(paths), np.int64), sizes, columns)
