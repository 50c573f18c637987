"""Small real files of every workload, as datasets."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile

from loaders import Samples

WORDS = ("A", "IT'S", "THE KING", "WHO CAME", "NO")
RATE = 16_000


def write_samples(root: Path, files: Sequence[tuple[str, bytes]], classes: int = 3, **columns: Any) -> Samples:
    """Write files; the samples are these, in so many classes."""
    for path, encoded in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(encoded)
    sizes = np.array([len(encoded) for _, encoded in files], np.int64)
    labels = np.arange(len(files), dtype=np.int64) % classes
    return Samples(root, tuple(path for path, _ in files), labels, sizes, columns)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """Return a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def flac(wave: np.ndarray[Any, Any], rate: int = RATE) -> bytes:
    """Return a FLAC file of a waveform."""
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, format="FLAC")
    return buffer.getvalue()


def make_wave(length: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return noise that falls with frequency, with a tone in it, within -1 to 1."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(rng.standard_normal(length))
    tone = np.sin(2 * np.pi * 440 * np.arange(length) / RATE) + rng.standard_normal(length) * 0.1
    wave: np.ndarray[Any, Any] = (0.1 * tone + 0.002 * (walk - walk.mean())).astype(np.float32).clip(-1, 1)
    return wave


def make_sounds(root: Path, lengths: Sequence[int]) -> Samples:
    """Write FLAC files of so many samples each, with transcripts."""
    files = [(f"{k}.flac", flac(make_wave(length, k))) for k, length in enumerate(lengths)]
    transcripts = pa.array([WORDS[k % len(WORDS)] for k in range(len(lengths))])
    durations = pa.array([length / RATE for length in lengths])
    return write_samples(root, files, transcript=transcripts, duration_s=durations)


def make_volumes(root: Path, count: int, edge: int = 20) -> Samples:
    """Write cases in MLPerf's form, each of another shape, with one or two of the classes."""
    files, labels = [], []
    for k in range(count):
        shape = (1, edge + k % 3, edge + 2, edge + 4 + k % 5)
        label = np.zeros(shape, np.uint8)
        label[0, 4:10, 5:11, 6:12] = 1 + k % 2
        files.append((f"case_{k:05d}_x.npy", npy(np.random.default_rng(k).standard_normal(shape, np.float32))))
        labels.append((f"case_{k:05d}_y.npy", npy(label)))
    masks = write_samples(root, labels)
    volumes = write_samples(root, files, label_path=pa.array(masks.paths))
    return Samples(root, volumes.paths, volumes.labels, volumes.sizes + masks.sizes, volumes.columns)


def make_pictures(root: Path, encoded: Sequence[bytes], boxes: Sequence[Sequence[Sequence[float]]] = ()) -> Samples:
    """Write encoded pictures with these boxes; by default with none, one and several things."""
    boxes = boxes or [[[3.0 + j, 4.0, 20.0, 15.0 + j] for j in range(k % 4)] for k in range(len(encoded))]
    outlines = [[[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in things] for things in boxes]
    return write_samples(
        root,
        [(f"{k:012d}.jpg", content) for k, content in enumerate(encoded)],
        boxes=pa.array(boxes, pa.list_(pa.list_(pa.float32()))),
        categories=pa.array([[1 + 2 * j for j in range(len(things))] for things in boxes], pa.list_(pa.int64())),
        segments=pa.array(outlines, pa.list_(pa.list_(pa.list_(pa.float32())))),
    )
