"""NumPy volumes: name.npy, pairs name_x.npy and name_y.npy, or name.npz with the arrays x and y.

Stored as the elements in C order and little-endian, with shape and dtype beside them: `tf.io.decode_raw` or
`numpy.frombuffer` make the array of them. The pairs are those of MLPerf's UNet3D.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError, SampleError
from loaders.records.shards.classes import Classes
from loaders.records.shards.convert.listing import (
    Broken,
    Content,
    Item,
    SampleListing,
    list_items,
    list_tree,
    make_item,
)
from loaders.records.shards.example import MAX_EXAMPLE_BYTES, Feature

_DAMAGED = (OSError, ValueError, EOFError, KeyError, SyntaxError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_SCALAR_BYTES = 1024
"""Most bytes of an .npy file that holds one number."""

_Array = npt.NDArray[Any]


def numpy_volumes(root: Path, *, classes: Classes | None = None, broken: list[Broken] | None = None) -> SampleListing:
    """List the volumes below a folder; a label is the class folder's place, or as given, or the number y of an .npz.

    Files that are no whole volumes are added to `broken`, if that is a list.

    Raises LoaderConfigError naming what is missing, SampleError naming a file that is no array.
    """
    tree = list_tree(root, (".npy", ".npz"), "volume below it (.npy, .npz)", classes)
    names = {name for name, _ in tree.files}
    masks = {name for name in names if name.endswith("_y.npy") and f"{name[:-6]}_x.npy" in names}

    def item_of(name: str, path: Path) -> Item:
        mask = f"{name[:-6]}_y.npy" if masks and name.endswith("_x.npy") else None
        if mask is not None and mask not in masks:
            raise LoaderConfigError(f"{path}: {Path(mask).name} is not beside it, as with other volumes; restore it")
        return _make_volume(root, name, path, tree.label(name), mask)

    items = list_items(((name, path) for name, path in tree.files if name not in masks), item_of, broken)
    source = SampleListing(
        "numpy", root, items, "label", "volume/path", _read, tree.labels, tree.ignored, broken=tuple(broken or ())
    )
    if not masks:
        return source
    import pyarrow as pa

    from loaders.records.shards.columns import LABELS

    # By this column a pipeline finds the labels of a volume.
    return replace(source, columns={LABELS: pa.array([item.companion for item in items], pa.string())})


def _make_volume(root: Path, name: str, path: Path, label: int, mask: str | None) -> Item:
    item = make_item(name, path, label)
    if path.suffix.lower() == ".npz":
        return _listed_archive(item, path)
    payload = _load(path, mapped=True).nbytes
    if mask is not None:
        beside = make_item(mask, root / mask, label)
        payload += _load(root / mask, mapped=True).nbytes
        item = replace(item, companion=mask, companion_size=beside.size, mtime_ns=max(item.mtime_ns, beside.mtime_ns))
    return _readable(replace(item, payload_size=payload), path)


def _readable(item: Item, path: Path) -> Item:
    # Before hours of work, not at the turn of the volume.
    if item.payload_size > MAX_EXAMPLE_BYTES:
        raise SampleError(f"{path}: {item.payload_size} bytes in one sample, at most {MAX_EXAMPLE_BYTES}; split it")
    return item


def _listed_archive(item: Item, path: Path) -> Item:
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    except _DAMAGED as error:
        raise SampleError(f"{path}: no whole .npz file ({error}); restore it or take it away") from error
    if sizes.get("y.npy", _SCALAR_BYTES) < _SCALAR_BYTES:
        _, label = _load_archive(path)
        if label is not None and label.size == 1 and label.dtype.kind in "iu":
            item = replace(item, label=int(label.reshape(())))
    return _readable(replace(item, payload_size=sum(sizes.values())), path)


def _load(path: Path, *, mapped: bool = False) -> _Array:
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except _DAMAGED as error:
        raise SampleError(f"{path}: no whole NumPy array ({error}); restore it or take it away") from error
    if not isinstance(array, np.ndarray):
        raise SampleError(f"{path}: several arrays in a file called .npy; call it .npz")
    return _numbers(array, path)


def _load_archive(path: Path) -> tuple[_Array, _Array | None]:
    """Return the arrays x and y, or the only one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            if "x" not in names and len(names) != 1:
                raise SampleError(f"{path}: expected the array x, or one alone; found {', '.join(names) or 'none'}")
            volume = archive["x" if "x" in names else names[0]]
            return _numbers(volume, path), _numbers(archive["y"], path) if "y" in names and "x" in names else None
    except _DAMAGED as error:
        raise SampleError(f"{path}: no whole .npz file ({error}); restore it or take it away") from error


def _numbers(array: _Array, path: Path) -> _Array:
    if array.dtype.kind not in "biufc":
        raise SampleError(f"{path}: an array of {array.dtype}; expected numbers")
    return array


def _read(root: Path, item: Item, sample_id: int) -> Content:
    path, beside = root / item.name, root / item.companion if item.companion else None
    for file, size in ((path, item.size), (beside, item.companion_size)):
        if file is not None and make_item(item.name, file, -1).size != size:
            raise SampleError(f"sample {sample_id}, {file}: it changed since the folder was scanned; scan it again")
    if path.suffix.lower() == ".npz":
        volume, mask = _load_archive(path)
    else:
        volume, mask = _load(path), None if beside is None else _load(beside)
    features = _described("volume", volume)
    if mask is not None and mask.size > 1:
        features |= {**_described("mask", mask), "mask/encoded": [bytes(_elements(mask))]}
    return Content("volume/encoded", _elements(volume), features)


def _described(name: str, array: _Array) -> dict[str, Feature]:
    return {f"{name}/shape": list(array.shape), f"{name}/dtype": [array.dtype.name.encode()]}


def _elements(array: _Array) -> memoryview:
    """Return the elements in C order and little-endian."""
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data
