"""Volumes and their labels in files: MLPerf's .npy through memory maps, NIfTI through nibabel.

Computed tomography is in Hounsfield units, clipped and normalised as MLPerf does it once for all; the figures are those
of MLPerf Training's image segmentation reference (preprocess_dataset.py).
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from joulefeed.npy import PARSING, map_npy
from loaders.base import SampleSource
from loaders.pipeline import UndecodableError

SPACING_MM: Final = (1.6, 1.2, 1.2)
"""Distance of voxels along depth, height and width in millimetres, to which every case is resampled."""
MIN_EDGE: Final = 128
"""Voxels below which an edge is padded."""

_MIN_HU: Final = -79.0
_MAX_HU: Final = 304.0
_MEAN_HU: Final = 101.0
_STD_HU: Final = 76.9
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14 (madvise(2)), for which the mmap module has no name."""
_HEADER_BYTES: Final = 12 + 10_000
"""Most that a .npy file has before its elements, as far as NumPy reads one that is not trusted."""
_SAME_SPACING_MM: Final = 1e-3
S = TypeVar("S", bound=np.generic)


@dataclass(frozen=True, slots=True)
class NiftiFiles:
    """A case as NIfTI has it: compressed files, whole."""

    image: bytes | memoryview
    labels: bytes | memoryview


def read_array(samples: SampleSource, sample_id: int, column: str | None = None) -> npt.NDArray[np.generic]:
    """Return a sample's .npy file, or the one that a column names, as an array that is not copied.

    Raises OSError when it cannot be read, UndecodableError when it is no whole .npy file.
    """
    path = samples.path(sample_id, column)
    return map_array(path) if samples.on_disk else array_in(samples.read(sample_id, column), path.name)


def array_in(content: bytes | memoryview, name: str) -> npt.NDArray[np.generic]:
    """Return the array of a .npy file that is in memory, sharing that; raises UndecodableError naming `name`."""
    head = BytesIO(content[:_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(head)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with PARSING:
            shape, fortran_order, dtype = read_header[version](head)
        if dtype.hasobject:
            raise UndecodableError(f"{name} contains Python objects, not numbers")
        # Of negative and of too many elements, as of bytes that are missing, NumPy says so.
        flat = np.frombuffer(content, dtype, math.prod(shape), head.tell())
        return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)
    except UndecodableError:
        raise
    except Exception as error:  # NumPy's reader raises whatever its parsing runs into
        raise UndecodableError(f"{name} is no whole .npy file: {error}") from error


def map_array(path: Path) -> npt.NDArray[np.generic]:
    """Map a .npy file into memory and read it whole into the page cache, as the reference reads it, without a copy.

    Raises OSError when it cannot be read, UndecodableError when it is no whole .npy file.
    """
    try:
        # Copy on write: file systems in user space may refuse maps that are shared.
        array: npt.NDArray[np.generic] = map_npy(path, "c")
    except OSError:
        raise
    except Exception as error:  # NumPy's reader raises whatever its parsing runs into
        raise UndecodableError(f"{path.name} is no whole .npy file: {error}") from error
    if not isinstance(array, np.memmap):
        raise UndecodableError(f"{path.name} is no .npy file: it holds {type(array).__name__}")
    _populate(array, path)
    return array


def _populate(array: np.memmap[tuple[int, ...], np.dtype[np.generic]], path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Asks for all of it at once, where faults would wait for one piece of read-ahead after the other.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)
    pages: mmap.mmap = array._mmap  # type: ignore[attr-defined]
    try:
        # An error of the device comes back from here; later it would kill the process.
        pages.madvise(_POPULATE_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in {22, 38}:  # EINVAL, ENOSYS: an older kernel
            raise
        for start in range(0, len(pages), mmap.PAGESIZE):
            pages[start]


def unpack(packed: NiftiFiles, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Decode a case as MLPerf prepares it: resampled, clipped and normalised.

    Returns the volume and its labels, both (1, D, H, W). Raises UndecodableError naming `name`.
    """
    volume, spacing = _nifti(packed.image, f"{name}'s image", np.float32)
    labels, _ = _nifti(packed.labels, f"{name}'s segmentation", np.uint8)
    if volume.shape != labels.shape:
        raise UndecodableError(f"{name}'s image is {volume.shape} and its segmentation {labels.shape}")
    volume, labels = resample(volume, labels, spacing)
    return normalise(volume)[None], labels[None]


def _nifti(encoded: bytes | memoryview, what: str, kind: type[S]) -> tuple[npt.NDArray[S], tuple[float, float, float]]:
    import nibabel

    try:
        with gzip.GzipFile(fileobj=BytesIO(encoded)) as stream:
            image: Any = nibabel.Nifti1Image.from_stream(stream)
            # In C's order, in which crops are cut.
            volume = np.ascontiguousarray(np.asanyarray(image.dataobj), dtype=kind)
            spacing = tuple(float(each) for each in image.header.get_zooms()[:3])
    except Exception as error:  # nibabel and gzip raise whatever their parsing runs into
        raise UndecodableError(f"{what} is no whole NIfTI file: {error}") from error
    if volume.ndim != 3:
        raise UndecodableError(f"{what} has {volume.ndim} axes; expected depth, height and width")
    return volume, (spacing[0], spacing[1], spacing[2])


def resample(
    volume: npt.NDArray[np.float32], labels: npt.NDArray[np.uint8], spacing_mm: tuple[float, float, float]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return volume and labels (D, H, W) with MLPerf's distance of voxels, linear and nearest in between."""
    import torch
    from torch.nn.functional import interpolate

    if all(abs(a - b) < _SAME_SPACING_MM for a, b in zip(spacing_mm, SPACING_MM, strict=True)):
        return volume, labels
    factors = zip(volume.shape, spacing_mm, SPACING_MM, strict=True)
    size = [max(1, int(length * have / want)) for length, have, want in factors]
    linear = interpolate(torch.from_numpy(volume)[None, None], size=size, mode="trilinear", align_corners=True)
    nearest = interpolate(torch.from_numpy(labels)[None, None], size=size, mode="nearest")
    return linear[0, 0].numpy(), nearest[0, 0].numpy()


def normalise(hu: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Clip Hounsfield units to -79 to 304, subtract 101 and divide by 76.9, in place; any shape."""
    np.clip(hu, _MIN_HU, _MAX_HU, out=hu)
    hu -= np.float32(_MEAN_HU)
    hu /= np.float32(_STD_HU)
    return hu
