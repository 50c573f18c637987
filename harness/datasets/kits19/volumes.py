"""Generated volumes as computed tomography has them, and the two kinds of files that they are stored in."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.draws import Field, smooth_noise

__all__ = ["Shape", "numpy_header", "packed_nifti", "slices"]

Shape = tuple[int, int, int]
"""Depth, height and width in voxels."""

_AIR_HU, _FAT_HU, _VISCERA_HU, _BONE_HU = -1000.0, -100.0, 25.0, 450.0
_NOISE_HU: Final = 14.0
_VISCERA_SPREAD_HU: Final = 60.0
_NONE, _KIDNEY, _TUMOUR = 0, 1, 2
_EDGE: Final = 512
"""Edge of the periodic fields of noise from which slices are cut."""

_LEVEL: Final = 1
"""Of compression, as nibabel has it by default."""
_STRATEGIES: Final = {"i": zlib.Z_HUFFMAN_ONLY, "u": zlib.Z_RLE}
"""By kind of number: noisy values have no repeats to search for, labels have runs alone; twice as fast as the default
for 1.1 times the bytes."""
_GZIP: Final = 31
"""zlib's window bits for a gzip member, whose header then holds no time: equal volumes make equal files."""


def slices(seed: int, sample_id: int, shape: Shape, labels: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.int16]]:
    """Yield a case slice by slice as int16 Hounsfield units of shape (height, width), and fill `labels` beside it.

    A body of fat and viscera lies in air, with a spine, two kidneys and one to three tumours on them. `labels` is uint8
    of `shape`: 0 background, 1 kidney, 2 tumour; every case has both.
    """
    rng = np.random.default_rng([seed, 0x1D, sample_id])
    _, height, width = shape
    y, x = np.ogrid[:height, :width]
    across, deep = rng.uniform(0.38, 0.47) * width, rng.uniform(0.28, 0.36) * height
    r = ((x - width / 2) / across) ** 2 + ((y - height / 2) / deep) ** 2
    inner = rng.uniform(0.58, 0.76)
    plane = np.select([r > 1, r > inner], [_AIR_HU, _FAT_HU], _VISCERA_HU).astype(np.float32)
    texture = np.where(r > inner, 0.0, _VISCERA_SPREAD_HU).astype(np.float32)
    bodies = _bodies(rng, np.array(shape, float))
    grain, soft = _fields(seed)
    drift = rng.integers(0, _EDGE, 2)
    for z in range(shape[0]):
        hu = plane + _NOISE_HU * _patch(grain, rng.integers(0, _EDGE, 2), shape)
        hu += texture * _patch(soft, drift + np.array([2 * z, z]), shape)
        labels[z] = _NONE
        for (cz, cy, cx), (rz, ry, rx), level, label in bodies:
            # Bodies keep a little of the noise; those that come later cover the earlier ones.
            if abs(z - cz) <= rz:
                inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= 1 - ((z - cz) / rz) ** 2
                hu[inside] = hu[inside] * 0.15 + level
                labels[z][inside] = label
        yield np.rint(np.clip(hu, -1024, 3071)).astype(np.int16)


def _bodies(rng: np.random.Generator, shape: npt.NDArray[np.float64]) -> list[tuple[Any, Any, float, int]]:
    """Return centre and radii in voxels, Hounsfield units and label of the spine, the kidneys and the tumours."""
    depth, _, width = shape
    bodies: list[tuple[Any, Any, float, int]] = [
        (shape * (0.5, 0.7, 0.5), shape * (9.0, 0.05, 0.06), _BONE_HU, _NONE),
    ]
    long = 0.13 * min(1.0, 0.75 * width / depth)
    enhanced = rng.uniform(140, 210)
    for side in (-1, 1):
        centre = (rng.uniform(0.38, 0.48), rng.uniform(0.56, 0.62), 0.5 + side * rng.uniform(0.16, 0.2))
        radii = shape * (long, 0.055, 0.05) * rng.uniform(0.9, 1.15)
        bodies.append((shape * centre, np.maximum(1.6, radii), enhanced, _KIDNEY))
    for _ in range(rng.choice([1, 2, 3], p=[0.85, 0.1, 0.05])):
        at, radii, _, _ = bodies[rng.integers(1, 3)]
        direction = rng.standard_normal(3)
        centre = np.clip(at + radii * direction / np.linalg.norm(direction), 1.0, shape - 2.0)
        radius = max(1.2, float(np.exp(rng.normal(-3.1, 0.4))) * width)
        bodies.append((centre, (radius, radius, radius), rng.uniform(50, 110), _TUMOUR))
    return bodies


def _patch(field: Field, at: npt.NDArray[np.int64], shape: Shape) -> Field:
    """Cut a patch of a periodic field; float32 of shape (height, width)."""
    _, height, width = shape
    (y, x), edge = (at % _EDGE).tolist(), _EDGE
    if height <= edge and width <= edge:  # a plain slice of the doubled field
        return field[y : y + height, x : x + width]
    part: Field = field[np.arange(y, y + height)[:, None] % edge, np.arange(x, x + width) % edge]
    return part


@lru_cache(maxsize=1)
def _fields(seed: int) -> tuple[Field, Field]:
    """Return the grain of the scanner and the soft texture of viscera, each repeated along both axes."""
    rng = np.random.default_rng([seed, 0x7E])
    grain, soft = (np.tile(smooth_noise(rng, _EDGE, exponent), (2, 2)) for exponent in (0.4, 1.4))
    return grain, soft


def numpy_header(shape: tuple[int, ...], kind: str) -> bytes:
    """Return what precedes the values of a C-ordered array in a .npy file; `kind` is NumPy's type string."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue()


def packed_nifti(volume: npt.NDArray[Any], spacing_mm: tuple[float, float, float]) -> Iterator[bytes]:
    """Yield a .nii.gz file in parts; `volume` is int16 or uint8 of shape (depth, height, width).

    The affine turns slices, rows and columns into feet-to-head, front-to-back and left-to-right millimetres, as that
    of KiTS19's cases does.
    """
    from nibabel.nifti1 import Nifti1Header

    depth, height, width = spacing_mm
    untyped: Any = Nifti1Header  # as all of nibabel's headers are
    header = untyped()
    header.set_data_dtype(volume.dtype)
    header.set_data_shape(volume.shape)
    affine = np.array([[0, 0, -width, 0], [0, -height, 0, 0], [-depth, 0, 0, 0], [0, 0, 0, 1]], np.float64)
    header.set_zooms(spacing_mm)
    header.set_sform(affine, "scanner")
    header.set_qform(affine, "scanner")
    header.set_xyzt_units("mm")
    header["magic"], header["vox_offset"] = b"n+1", 352
    header.set_slope_inter(1.0, 0.0)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, _STRATEGIES[volume.dtype.kind])
    yield packer.compress(header.binaryblock + bytes(4))
    for column in range(volume.shape[2]):  # NIfTI's first axis is its fastest
        yield packer.compress(volume[:, :, column].tobytes(order="F"))
    yield packer.flush()
