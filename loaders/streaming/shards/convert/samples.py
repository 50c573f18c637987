"""The samples of a dataset as the loaders of files take them: their files, and their rows of the dataset's columns."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from loaders.errors import SampleError
from loaders.streaming.shards.columns import FILE_SUFFIX, name_file_feature, to_storable
from loaders.streaming.shards.convert.folders import AUDIO_SUFFIXES
from loaders.streaming.shards.convert.source import Content, Item, Source, read_regular

if TYPE_CHECKING:
    from loaders.base import Samples

__all__ = ["list_samples"]

_OTHERS: Final = (".npy", ".nii.gz", ".nii", ".npz")
"""Suffixes of files that are neither pictures nor recordings."""


def list_samples(samples: Samples) -> Source:
    """Return the samples as a source, each with all its files.

    Raises LoaderConfigError naming a column that a record cannot hold.
    """
    columns = to_storable(samples.columns)
    beside = {name: column.to_pylist() for name, column in columns.items() if name.endswith(FILE_SUFFIX)}
    sizes, labels = samples.sizes.tolist(), samples.labels.tolist()
    items = tuple(
        Item(name, label, size, 0, size, files={key: paths[at] for key, paths in beside.items() if paths[at]})
        for at, (name, label, size) in enumerate(zip(samples.paths, labels, sizes, strict=True))
    )
    payload, label, path = _features(samples.paths[0])
    read = {"image/encoded": _read_image, "audio/encoded": _read_audio, "data": _read_data}[payload]
    return Source("samples", samples.root, items, label, path, read, columns=columns)


def _features(path: str) -> tuple[str, str, str]:
    """Return the names of the features of a sample's file, its label and its path."""
    name = path.lower()
    if name.endswith(AUDIO_SUFFIXES):
        return "audio/encoded", "label", "audio/path"
    if name.endswith(_OTHERS):
        return "data", "label", "path"
    return "image/encoded", "image/class/label", "image/path"


def _read_image(root: Path, item: Item, sample_id: int) -> Content:
    return _read("image/encoded", root, item, sample_id)


def _read_audio(root: Path, item: Item, sample_id: int) -> Content:
    return _read("audio/encoded", root, item, sample_id)


def _read_data(root: Path, item: Item, sample_id: int) -> Content:
    return _read("data", root, item, sample_id)


def _read(payload_name: str, root: Path, item: Item, sample_id: int) -> Content:
    payload = _content(root, item.name, sample_id)
    beside = {name_file_feature(column): _content(root, path, sample_id) for column, path in item.files.items()}
    nbytes = len(payload) + sum(map(len, beside.values()))
    if nbytes != item.size:
        raise SampleError(
            f"sample {sample_id}, {root / item.name}: {nbytes} bytes, {item.size} when the tree was scanned; "
            "scan it again"
        )
    return Content(payload_name, payload, {name: [content] for name, content in beside.items()})


def _content(root: Path, path: str, sample_id: int) -> bytes:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise SampleError(f"sample {sample_id}: its file {path} is said to lie outside of {root}")
    try:
        return read_regular(root / path)
    except OSError as error:
        raise SampleError(f"sample {sample_id}, {root / path}: {error.strerror}; restore it or take it away") from error
