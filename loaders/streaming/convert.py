"""From a tree of files to a folder of TFRecord shards, once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError
from loaders.streaming.example import encode_image_example
from loaders.streaming.index import RECORD, save_index, save_manifest, stored_key
from loaders.streaming.tfrecord import FOOTER_BYTES, HEADER_BYTES, write_record

__all__ = ["convert"]


def convert(
    samples: Samples,
    out: Path,
    *,
    key: str,
    seed: int = 0,
    shard_bytes: int = 64 * 2**20,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the samples, shuffled by `seed`, into TFRecord shards of about `shard_bytes` and return `out`.

    A folder whose stored key is equal is left as it is. The folder appears whole or not at all, and readers
    of an older one keep what they have open. `progress` is called with (samples done, samples in all).

    Raises SampleError naming the sample that cannot be read or has changed, OSError when `out` cannot be
    written, LoaderConfigError without samples.
    """
    if not len(samples):
        raise LoaderConfigError(f"nothing to convert: {samples.root} has no samples")
    if shard_bytes < 1:
        raise LoaderConfigError(f"shard_bytes={shard_bytes}: expected 1 or more")
    if stored_key(out) == key:
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with _beside(out) as partial:
        shards = _write_shards(samples, partial, seed, shard_bytes, progress)
        save_manifest(partial, key=key, seed=seed, shards=shards)
        _put_in_place(partial, out, key)
    return out


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    partial = Path(mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, out: Path, key: str) -> None:
    partial.chmod(0o755)  # mkdtemp's own mode would hide the shards from a daemon of another user
    try:
        partial.rename(out)
    except OSError:
        if not out.is_dir():
            raise
        if stored_key(out) == key:  # another process made the same one meanwhile
            return
        with _beside(out) as old:
            out.rename(old / out.name)
            partial.rename(out)


def _read(samples: Samples, sample_id: int) -> bytes:
    path = samples.path(sample_id)
    try:
        image = path.read_bytes()
    except OSError as error:
        raise SampleError(f"sample {sample_id}, {path}: {error.strerror}") from error
    expected = int(samples.sizes[sample_id])
    if len(image) != expected:
        raise SampleError(
            f"sample {sample_id}, {path}: {len(image)} bytes, {expected} when the tree was scanned; scan it again"
        )
    return image


def _write_shards(
    samples: Samples,
    folder: Path,
    seed: int,
    shard_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> list[Path]:
    order = np.random.default_rng(seed).permutation(len(samples))
    shards: list[Path] = []
    done = 0
    while done < len(order):
        shard = folder / f"shard-{len(shards):05d}.tfrecord"
        done = _write_shard(samples, shard, order, done, shard_bytes, progress)
        shards.append(shard)
    return shards


def _write_shard(
    samples: Samples,
    shard: Path,
    order: np.ndarray[tuple[int], np.dtype[np.int64]],
    done: int,
    shard_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Write one shard from position `done` of the order on and return the position after its last sample."""
    records: list[tuple[int, int, int, int, int, int]] = []
    offset = 0
    with shard.open("wb", buffering=2**20) as file:
        while done < len(order):
            sample_id = int(order[done])
            image = _read(samples, sample_id)
            label = int(samples.labels[sample_id])
            payload, image_at = encode_image_example(
                sample_id=sample_id, label=label, path=samples.paths[sample_id], image=image
            )
            size = HEADER_BYTES + len(payload) + FOOTER_BYTES
            if offset and offset + size > shard_bytes:
                break
            write_record(file, payload)
            records.append((offset, size, HEADER_BYTES + image_at, len(image), label, sample_id))
            offset += size
            done += 1
            if progress is not None:
                progress(done, len(order))
        file.flush()
        os.fsync(file.fileno())
    save_index(shard, np.array(records, RECORD))
    return done
