"""From the files of a dataset to a folder of TFRecord shards."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, SampleError, ShardError
from loaders.records.shards.example import Feature, encode_head
from loaders.records.shards.index import MANIFEST, RECORD, read_key, save_index, save_manifest, write_atomically
from loaders.records.shards.output import OutputError, exclusive_lock
from loaders.records.shards.tfrecord import HEADER_BYTES, write_record
from loaders.records.workers import MAX_WORKERS, run_tasks
from loaders.shared.options import check_whole

if TYPE_CHECKING:
    import pyarrow as pa

    from loaders.base import Samples

SHARD_BYTES: Final = 64 * 2**20
"""About the bytes of a shard, if no single sample is larger."""
IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png")
"""Suffixes of the images of a tree."""

_AUDIO: Final = (".wav", ".flac", ".ogg", ".opus", ".mp3")
_OTHERS: Final = (".npy", ".nii.gz", ".nii", ".npz")
"""Suffixes of files that are neither images nor recordings."""
_OVERHEAD_BYTES: Final = 256
"""About what a record takes beside its file and path."""


class _Names(NamedTuple):
    """The features of a sample's file, its label and its path."""

    payload: str
    label: str
    path: str


@dataclass(frozen=True, slots=True)
class _ShardTask:
    """All that a process needs to write one shard."""

    out: Path
    ids: tuple[int, ...]
    samples: Samples
    """These samples, in the shard's order."""
    names: _Names


def image_tree(root: Path) -> Samples:
    """List the images below a folder, root/class/…/name.jpg, in the order of their paths.

    A label is the position of the class folder among all, sorted by name, as torchvision's ImageFolder gives it; -1
    where the images lie in the root. Hidden files are left out; links are followed, but into no folder twice.

    Raises LoaderConfigError naming a folder that is missing or cannot be read, or an image beside class folders,
    SampleError naming a file whose status cannot be read or that is no regular file.
    """
    from loaders.base import Samples

    if not root.is_dir():
        problem = "it is not a folder" if root.exists() else "there is no such folder"
        raise LoaderConfigError(f"{root}: {problem}; name the folder that holds the images")
    paths = tuple(name for name in _list_files(root) if name.lower().endswith(IMAGE_SUFFIXES))
    if not paths:
        raise LoaderConfigError(f"{root}: no image below it ({', '.join(IMAGE_SUFFIXES)}); expected class/name.jpg")
    folders = sorted({path.partition("/")[0] for path in paths if "/" in path})
    loose = next((path for path in paths if "/" not in path), None)
    if loose and folders:
        raise LoaderConfigError(
            f"{root / loose}: it lies beside class folders such as {folders[0]}; move it into one of them or away"
        )
    labels = {folder: label for label, folder in enumerate(folders)}
    sizes = [_stat(root / path).st_size for path in paths]
    of_paths = [labels.get(path.partition("/")[0], -1) for path in paths]
    return Samples(root, paths, np.array(of_paths, np.int64), np.array(sizes, np.int64))


def hash_files(samples: Samples) -> str:
    """Return 16 hex digits that differ for other paths, labels, sizes or times of change of a dataset's files.

    Raises SampleError naming a file whose status cannot be read.
    """
    digest = hashlib.sha256(f"{samples.root.resolve()}\n".encode(errors="surrogateescape"))
    for path, label, size in zip(samples.paths, samples.labels.tolist(), samples.sizes.tolist(), strict=True):
        digest.update(os.fsencode(path) + f"\0{label} {size} {_stat(samples.root / path).st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def convert(
    samples: Samples,
    out: Path,
    *,
    key: str,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the samples, shuffled by `seed`, into TFRecord shards and return `out`; equal bytes for any `workers`.

    A record has the sample's file, its row of the dataset's columns, and the further files of columns whose names end
    in `_path` (`loaders.records.shards.columns`). A folder with this key stays as it is, and shards under another key
    are replaced. The folder appears whole or not at all, and readers of an older one keep their open files.

    Raises SampleError naming the sample that cannot be read or has changed, OSError when `out` cannot be written,
    OutputError when something else is there or another process converts to it, WorkerError when a process was killed,
    LoaderConfigError without samples and for a column that a record cannot hold.

    Args:
        samples: The dataset.
        out: The shard folder.
        key: Stored with the shards: what they were made of.
        seed: Of the order of the samples (default: 0).
        shard_bytes: About the bytes of a shard, if no single sample is larger (default: 64 MiB).
        workers: Processes (default: 1).
        progress: Called with (samples done, samples in all) (default: not called).
    """
    check_whole("workers", workers, 1, MAX_WORKERS)
    check_whole("shard_bytes", shard_bytes, 1)
    if not len(samples):
        raise LoaderConfigError(f"nothing to convert: {samples.root} has no samples")
    if read_key(out) == key:
        return out
    _check_replaceable(out)
    work = out.with_name(f".{out.name}.convert.partial")
    tasks = _plan(samples, work, seed, shard_bytes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(out.with_name(f".{out.name}.convert.lock"), out):
        shutil.rmtree(work, ignore_errors=True)  # of one that was killed
        try:
            work.mkdir()
            _write(tasks, len(samples), workers, progress)
            save_manifest(work, key=key, seed=seed, shards=[task.out for task in tasks])
            _put_in_place(work, out)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return out


def _list_files(root: Path) -> list[str]:
    """Return the paths of all files below a folder relative to it, sorted; raises LoaderConfigError."""

    def refuse(error: OSError) -> None:
        raise LoaderConfigError(f"{error.filename}: {error.strerror}; make it readable or take it away") from error

    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for folder, inner, files in os.walk(root, onerror=refuse, followlinks=True):
        here = Path(folder).stat()
        if (here.st_dev, here.st_ino) in seen:
            inner.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        inner[:] = [name for name in inner if not name.startswith(".")]
        below = Path(folder).relative_to(root)
        found.extend((below / name).as_posix() for name in files if not name.startswith("."))
    return sorted(found)


def _stat(path: Path) -> os.stat_result:
    try:
        status = path.stat()
    except OSError as error:
        raise SampleError(f"{path}: {error.strerror}; restore it or take it away") from error
    if not stat.S_ISREG(status.st_mode):
        raise SampleError(f"{path}: it is a folder, FIFO, socket or device, expected a regular file; take it away")
    return status


def _check_replaceable(out: Path) -> None:
    """Raise OutputError unless `out` is nothing, an empty folder, or a shard folder."""
    if not out.name or out.name == "..":
        raise OutputError(f"{out}: it cannot be replaced; choose a folder with a name")
    if out.is_dir() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise OutputError(f"{out}: the folder holds something else than shards; choose another or empty it")
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: it is no folder; choose another name")


def _plan(samples: Samples, folder: Path, seed: int, shard_bytes: int) -> list[_ShardTask]:
    """Divide the samples, shuffled by `seed`, into shards of about `shard_bytes`, or of one sample each."""
    from loaders.records.shards.columns import to_storable  # with Arrow, which Samples has anyway

    samples = replace(samples, columns=to_storable(samples.columns))
    names = _names_of(samples.paths[0])
    order = np.random.default_rng(seed).permutation(len(samples)).tolist()
    record_bytes = samples.sizes + np.array([len(os.fsencode(path)) for path in samples.paths]) + _OVERHEAD_BYTES
    return [
        _ShardTask(folder / f"shard-{number:05d}.tfrecord", tuple(ids), _take(samples, ids), names)
        for number, ids in enumerate(_divide(order, record_bytes, shard_bytes))
    ]


def _take(samples: Samples, ids: list[int]) -> Samples:
    return replace(
        samples,
        paths=tuple(samples.paths[sample_id] for sample_id in ids),
        labels=samples.labels[ids],
        sizes=samples.sizes[ids],
        columns={name: column.take(ids) for name, column in samples.columns.items()},
    )


def _names_of(path: str) -> _Names:
    name = path.lower()
    if name.endswith(_AUDIO):
        return _Names("audio/encoded", "label", "audio/path")
    if name.endswith(_OTHERS):
        return _Names("data", "label", "path")
    return _Names("image/encoded", "image/class/label", "image/path")


def _divide(order: list[int], record_bytes: npt.NDArray[np.int64], shard_bytes: int) -> Iterator[list[int]]:
    ids: list[int] = []
    total = 0
    for sample_id in order:
        nbytes = int(record_bytes[sample_id])
        if ids and total + nbytes > shard_bytes:
            yield ids
            ids, total = [], 0
        ids.append(sample_id)
        total += nbytes
    yield ids


def _write(tasks: list[_ShardTask], total: int, workers: int, progress: Callable[[int, int], None] | None) -> None:
    done = 0
    show = progress or (lambda done, total: None)
    if workers == 1:
        for task in tasks:
            before = done
            done += _write_shard(task, lambda written, before=before: show(before + written, total))  # type: ignore[misc]
        return
    for _, samples in run_tasks(_write_shard, tasks, workers):
        done += samples
        show(done, total)


def _write_shard(task: _ShardTask, progress: Callable[[int], None] | None = None) -> int:
    """Write a shard and its index; return the number of its samples."""
    records: list[tuple[int, int, int, int, int, int, int]] = []
    offset = 0
    labels = task.samples.labels.tolist()
    with write_atomically(task.out) as file:
        for row, sample_id in enumerate(task.ids):
            head, payload = _encode(task, row, sample_id, labels[row])
            size, checksum = write_record(file, head, payload)
            records.append((offset, size, HEADER_BYTES + len(head), len(payload), labels[row], sample_id, checksum))
            offset += size
            if progress is not None:
                progress(row + 1)
    save_index(task.out, np.array(records, RECORD))
    return len(records)


def _encode(task: _ShardTask, row: int, sample_id: int, label: int) -> tuple[bytes, bytes]:
    """Return the head of a sample's record and its payload; raises SampleError naming its file."""
    from loaders.records.shards.columns import FILE_SUFFIX, encode_row, name_file_feature

    samples, path = task.samples, task.samples.paths[row]
    payload = _read(samples, path, sample_id)
    beside = {
        name_file_feature(name): _read(samples, further, sample_id)
        for name, column in samples.columns.items()
        if name.endswith(FILE_SUFFIX) and (further := _text(column, row))
    }
    nbytes = len(payload) + sum(map(len, beside.values()))
    if nbytes != samples.sizes[row]:
        raise SampleError(
            f"sample {sample_id}, {samples.root / path}: {nbytes} bytes, {samples.sizes[row]} when the tree was "
            "scanned; scan it again"
        )
    features: dict[str, Feature] = {
        "id": [sample_id],
        task.names.label: [label],
        task.names.path: [os.fsencode(path)],
        **(encode_row(samples.columns, row) if samples.columns else {}),
        **{name: [content] for name, content in beside.items()},
    }
    try:
        return encode_head(features, task.names.payload, len(payload)), payload
    except ShardError as error:
        raise SampleError(f"sample {sample_id}, {samples.root / path}: {error}") from error


def _text(column: pa.Array, row: int) -> str | None:
    value = column[row].as_py()
    return None if value is None else str(value)


def _read(samples: Samples, path: str, sample_id: int) -> bytes:
    where = f"sample {sample_id}, {samples.root / path}"
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise SampleError(f"{where}: its path leads out of {samples.root}; expected one below it")
    try:
        # A FIFO, which may never end, opens at once and is refused.
        with open(samples.root / path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SampleError(f"{where}: it is a FIFO, socket or device, expected a regular file; take it away")
            return file.read()
    except OSError as error:
        raise SampleError(f"{where}: {error.strerror}; restore it or take it away") from error


def _put_in_place(work: Path, out: Path) -> None:
    # Readers of an older folder keep what they have open.
    old = out.with_name(f".{out.name}.old.partial")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
