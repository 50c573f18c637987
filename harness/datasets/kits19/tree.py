"""A real KiTS19, in the form of its challenge or as MLPerf preprocesses it."""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from harness.datasets import DatasetHandle, Progress
from harness.datasets.scan import SampleFile, entries_of, in_threads, limited
from harness.datasets.tree import RealTree
from harness.errors import DatasetError
from joulefeed.npy import map_npy

_LAYOUT: Final = (
    "case_00000/{imaging,segmentation}.nii.gz, or case_00000_{x,y}.npy as MLPerf's preprocessing writes them"
)
_FOLDER: Final = re.compile(r"case_(\d+)")
_FILE: Final = re.compile(r"case_(\d+)_([xy])\.npy")
_LABELLED: Final = 210
"""Cases of KiTS19 from this one on are its challenge's test set, and have no segmentation (arXiv:1904.00445)."""


class _Case(NamedTuple):
    number: int
    image: str
    """Relative to the root, as `labels` is."""
    labels: str


@dataclass(frozen=True)
class Kits19Tree(RealTree):
    """The cases of a root: case_00000/{imaging,segmentation}.nii.gz, or case_00000_{x,y}.npy."""

    noun: ClassVar[str] = "cases"
    layout: ClassVar[str] = "a folder of KiTS19's cases"

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """List the cases, judge their headers and lengths, and return the whole ones; `cache` is not used."""
        import pyarrow as pa

        root = self.folder
        listed, unlabelled = _list_cases(root)
        cases = limited(listed, self.limit, self.seed)
        what = f"checking {self.name}"
        progress(what, 0, len(cases))
        faults = in_threads(lambda case: _fault(root, case), cases, lambda done: progress(what, done, len(cases)))
        broken = {case.image: fault for case, fault in zip(cases, faults, strict=True) if fault is not None}
        kept = [case for case in cases if case.image not in broken]
        files = [[(path, (root / path).stat()) for path in (case.image, case.labels)] for case in kept]
        samples = [
            SampleFile(case.image, 0, sum(s.st_size for _, s in pair), 0)
            for case, pair in zip(kept, files, strict=True)
        ]
        facts = {
            "form": "numpy" if cases[0].image.endswith(".npy") else "nifti",
            "cases_without_segmentation": unlabelled,
        }
        hashed = (f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n" for pair in files for path, status in pair)
        columns = {"label_path": pa.array([case.labels for case in kept])}
        # A fault names one of the two files, and a sample that is left out its image.
        return replace(self.handle(samples, dict(broken.values()), facts, hashed, columns), skipped=tuple(broken))


def _list_cases(root: Path) -> tuple[list[_Case], int]:
    """Return the cases of a root in order, and how many of the challenge's test set have no segmentation by design.

    Raises DatasetError naming dataset.root when it is missing, no folder, not readable, of both forms or without cases.
    """
    names = [entry.name for entry in entries_of(root, _LAYOUT)]
    folders = {int(match[1]): name for name in names if (match := _FOLDER.fullmatch(name))}
    arrays = {int(match[1]): match[1] for name in names if (match := _FILE.fullmatch(name))}
    if folders and arrays:
        raise DatasetError(
            f"dataset.root={root}: holds both forms of cases, {folders[min(folders)]} and "
            f"case_{arrays[min(arrays)]}_x.npy for two; expected one, in a folder of its own"
        )
    if arrays:
        return [_Case(n, f"case_{digits}_x.npy", f"case_{digits}_y.npy") for n, digits in sorted(arrays.items())], 0
    cases = [_Case(n, f"{name}/imaging.nii.gz", f"{name}/segmentation.nii.gz") for n, name in sorted(folders.items())]
    unlabelled = {c.number for c in cases if c.number >= _LABELLED and not (root / c.labels).exists()}
    if not cases or len(unlabelled) == len(cases):
        problem = f"holds no case, but {', '.join(names[:3])}" if names else "is empty"
        problem = f"its {len(cases)} cases have no segmentation" if cases else problem
        raise DatasetError(f"dataset.root={root}: {problem}; expected {_LAYOUT}")
    return [case for case in cases if case.number not in unlabelled], len(unlabelled)


def _fault(root: Path, case: _Case) -> tuple[str, str] | None:
    """Return the path of a broken file and why it is broken; None for a whole case.

    Headers and lengths are judged alone.
    """
    shapes = []
    for path, what, kind in ((case.image, "image", np.float32), (case.labels, "segmentation", np.uint8)):
        file = root / path
        try:
            if not file.stat().st_size:
                return path, "is empty"
            shapes.append(_numpy_shape(file, kind) if path.endswith(".npy") else _nifti_shape(file))
        except FileNotFoundError:
            return path, f"is missing: the case has no {what}"
        except OSError as error:
            return path, f"cannot be read ({error.strerror or error})"
        except _UnfitError as error:
            return path, str(error)
    if shapes[0] != shapes[1]:
        return case.labels, f"has shape {_shown(shapes[1])}, and the image {_shown(shapes[0])}"
    return None


class _UnfitError(Exception):
    """The message says why a file is broken."""


def _numpy_shape(path: Path, kind: type[np.generic]) -> tuple[int, ...]:
    try:
        array: Any = map_npy(path, "r")
    except OSError:
        raise
    except Exception as error:  # NumPy's reader raises whatever its parsing runs into
        reason = "is truncated" if "greater than file size" in str(error) else "has an unreadable header"
        raise _UnfitError(f"{reason} ({error})") from error
    if not isinstance(array, np.ndarray):
        raise _UnfitError("is an archive, expected a plain .npy file")
    if array.dtype != kind or array.ndim != 4 or array.shape[0] != 1:
        found = f"{array.dtype} of shape {_shown(array.shape)}"
        raise _UnfitError(f"holds {found}, expected {np.dtype(kind)} of shape 1 x depth x height x width")
    return tuple(array.shape)


def _nifti_shape(path: Path) -> tuple[int, ...]:
    import nibabel

    try:
        image: Any = nibabel.load(path)
        shape = tuple(int(edge) for edge in image.shape)
        wanted = int(image.dataobj.offset) + math.prod(shape) * int(image.get_data_dtype().itemsize)
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            (length,) = struct.unpack("<I", file.read(4))
    except PermissionError:
        raise
    except Exception as error:  # nibabel and zlib raise whatever their parsing runs into
        raise _UnfitError(f"has an unreadable header ({error})") from error
    if len(shape) != 3:
        raise _UnfitError(f"has shape {_shown(shape)}, expected slices, rows and columns")
    # The last word of a gzip file is its unpacked length (RFC 1952, section 2.3.1).
    if length != wanted % 2**32:
        raise _UnfitError(f"is truncated: it does not end as {wanted} packed bytes do")
    return shape


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
