"""The two kinds of files that a case is stored in, made in parts so that no file is ever whole in memory twice."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["numpy_header", "packed_nifti"]

_LEVEL: Final = 1
"""Of compression, as nibabel has it by default."""
_STRATEGIES: Final = {"i": zlib.Z_HUFFMAN_ONLY, "u": zlib.Z_RLE}
"""By kind of number: what is noisy has no repeats to search for, labels have runs alone; twice as fast as the default
for 1.1 times the bytes."""
_GZIP: Final = 31
"""zlib's window bits for a gzip member, whose header then holds no time: equal volumes make equal files."""


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
