"""Lists the cases of a real KiTS19, in either of its forms, and says what is wrong with each."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.errors import DatasetError

__all__ = ["Case", "defect", "list_cases"]

_LAYOUT: Final = (
    "case_00000/{imaging,segmentation}.nii.gz, or case_00000_{x,y}.npy as MLPerf's preprocessing writes them"
)
_FOLDER: Final = re.compile(r"case_(\d+)")
_FILE: Final = re.compile(r"case_(\d+)_([xy])\.npy")
_LABELLED: Final = 210
"""Cases of KiTS19 from this one on are its challenge's test set, and have no segmentation (arXiv:1904.00445)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case's files, by their names."""

    number: int
    image: str
    """Relative to the root, as `labels` is."""
    labels: str


def list_cases(root: Path) -> tuple[list[Case], int]:
    """Return the cases of a root in order, and how many of the challenge's test set have no segmentation by design.

    Raises DatasetError naming dataset.root when it is missing, no folder, not readable, of both forms or without cases.
    """
    try:
        names = sorted(os.listdir(root))  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError as error:
        raise DatasetError(f"dataset.root={root}: does not exist; expected a folder of {_LAYOUT}") from error
    except NotADirectoryError as error:
        raise DatasetError(f"dataset.root={root}: is a file; expected a folder of {_LAYOUT}") from error
    except OSError as error:
        raise DatasetError(f"dataset.root={root}: cannot be listed ({error.strerror})") from error
    folders = {int(match[1]): name for name in names if (match := _FOLDER.fullmatch(name))}
    arrays = {int(match[1]): match[1] for name in names if (match := _FILE.fullmatch(name))}
    if folders and arrays:
        raise DatasetError(
            f"dataset.root={root}: holds both forms of cases, {folders[min(folders)]} and "
            f"case_{arrays[min(arrays)]}_x.npy for two; expected one, in a folder of its own"
        )
    if arrays:
        return [Case(n, f"case_{digits}_x.npy", f"case_{digits}_y.npy") for n, digits in sorted(arrays.items())], 0
    cases = [Case(n, f"{name}/imaging.nii.gz", f"{name}/segmentation.nii.gz") for n, name in sorted(folders.items())]
    unlabelled = {c.number for c in cases if c.number >= _LABELLED and not (root / c.labels).exists()}
    if not cases or len(unlabelled) == len(cases):
        held = f"its {len(cases)} cases have no segmentation" if cases else _held(names)
        raise DatasetError(f"dataset.root={root}: {held}; expected {_LAYOUT}")
    return [case for case in cases if case.number not in unlabelled], len(unlabelled)


def defect(root: Path, case: Case) -> tuple[str, str] | None:
    """Return the path of a file at fault and what is wrong with it, None if nothing is.

    Headers and lengths are judged alone.
    """
    try:
        for path, what in ((case.image, "image"), (case.labels, "segmentation")):
            _judge_file(root / path, what)
        if case.image.endswith(".npy"):
            shapes = [_numpy(root / case.image, np.float32), _numpy(root / case.labels, np.uint8)]
        else:
            shapes = [_nifti(root / case.image), _nifti(root / case.labels)]
    except _UnfitError as unfit:
        return str(unfit.path.relative_to(root)), unfit.reason
    if shapes[0] != shapes[1]:
        return case.labels, f"has shape {_shown(shapes[1])}, and the image {_shown(shapes[0])}"
    return None


class _UnfitError(Exception):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def _judge_file(path: Path, what: str) -> None:
    try:
        if path.stat().st_size:
            return
    except FileNotFoundError as error:
        raise _UnfitError(path, f"is missing: the case has no {what}") from error
    except OSError as error:
        raise _UnfitError(path, f"cannot be read ({error.strerror})") from error
    raise _UnfitError(path, "is empty")


def _numpy(path: Path, kind: type[np.generic]) -> tuple[int, ...]:
    try:
        array: Any = np.load(path, mmap_mode="r")
    except OSError as error:
        raise _UnfitError(path, f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # NumPy's reader raises whatever its parsing runs into
        reason = "is truncated" if "greater than file size" in str(error) else "has an unreadable header"
        raise _UnfitError(path, f"{reason} ({error})") from error
    if not isinstance(array, np.ndarray):
        raise _UnfitError(path, "is an archive, expected a plain .npy file")
    if array.dtype != kind or array.ndim != 4 or array.shape[0] != 1:
        found = f"{array.dtype} of shape {_shown(array.shape)}"
        raise _UnfitError(path, f"holds {found}, expected {np.dtype(kind)} of shape 1 x depth x height x width")
    return tuple(array.shape)


def _nifti(path: Path) -> tuple[int, ...]:
    import nibabel

    try:
        image: Any = nibabel.load(path)
        shape = tuple(int(edge) for edge in image.shape)
        wanted = int(image.dataobj.offset) + math.prod(shape) * int(image.get_data_dtype().itemsize)
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            (length,) = struct.unpack("<I", file.read(4))
    except PermissionError as error:
        raise _UnfitError(path, f"cannot be read ({error.strerror})") from error
    except Exception as error:  # nibabel and zlib raise whatever their parsing runs into
        raise _UnfitError(path, f"has an unreadable header ({error})") from error
    if len(shape) != 3:
        raise _UnfitError(path, f"has shape {_shown(shape)}, expected slices, rows and columns")
    # The last word of a gzip file is its unpacked length (RFC 1952, section 2.3.1).
    if length != wanted % 2**32:
        raise _UnfitError(path, f"is truncated: it does not end as {wanted} packed bytes do")
    return shape


def _held(names: Iterable[str]) -> str:
    some = [name for name in names if not name.startswith(".")][:3]
    return f"holds no case, but {', '.join(some)}" if some else "is empty"


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(str(edge) for edge in shape)
