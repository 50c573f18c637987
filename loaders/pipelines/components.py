"""Connected parts of a volume's mask, by their runs: scipy.ndimage.label and find_objects without SciPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Box", "components"]

_Ints = npt.NDArray[np.int64]


class Box(NamedTuple):
    """The least box that holds something, in voxels."""

    start: tuple[int, int, int]
    stop: tuple[int, int, int]
    """Beyond the last voxel of each axis."""

    @property
    def volume(self) -> int:
        """Voxels in the box."""
        (a, b, c), (d, e, f) = self.start, self.stop
        return (d - a) * (e - b) * (f - c)

    def moved(self, by: tuple[int, int, int]) -> Box:
        """Return the box with `by` added to its voxels."""
        (a, b, c), (d, e, f), (z, y, x) = self.start, self.stop, by
        return Box((a + z, b + y, c + x), (d + z, e + y, f + x))


def components(mask: npt.NDArray[np.bool_]) -> list[Box]:
    """Return the box of every part of a (D, H, W) mask whose voxels touch face to face, in order of first voxels."""
    if not mask.any():
        return []
    rows, starts, stops = _runs(mask)
    root = _joined(*_touching(rows, starts, stops, mask.shape[1]), count=len(rows))
    _, part = np.unique(root, return_inverse=True)
    z, y = np.divmod(rows, mask.shape[1])
    low = [_reduced(np.minimum, part, axis) for axis in (z, y, starts)]
    high = [_reduced(np.maximum, part, axis) for axis in (z + 1, y + 1, stops)]
    return [
        Box((int(a), int(b), int(c)), (int(d), int(e), int(f))) for a, b, c, d, e, f in zip(*low, *high, strict=True)
    ]


def _runs(mask: npt.NDArray[np.bool_]) -> tuple[_Ints, _Ints, _Ints]:
    """Return row (z * H + y), first and beyond-last column of every run along the last axis, in order."""
    width = mask.shape[2]
    # Rows without any voxel, most of them, are passed over.
    rows = np.flatnonzero(mask.any(axis=2))
    padded = np.zeros((len(rows), width + 2), np.int8)
    padded[:, 1:-1] = mask.reshape(-1, width)[rows]
    change = np.diff(padded, axis=1)
    at, starts = np.nonzero(change == 1)
    _, stops = np.nonzero(change == -1)
    return rows[at], starts.astype(np.int64), stops.astype(np.int64)


def _touching(rows: _Ints, starts: _Ints, stops: _Ints, height: int) -> tuple[_Ints, _Ints]:
    """Return pairs of runs that overlap in neighbouring rows of a slice, or in the same row of neighbouring slices."""
    width = int(stops.max()) + 1
    firsts, seconds = [], []
    for step in (1, height):
        other = rows + step
        inside = np.ones(len(rows), np.bool_) if step == height else (rows % height) != height - 1
        # In the order of (row, column), runs of the other row that end after this starts and start before it ends.
        low = np.searchsorted(rows * width + stops, other * width + starts, side="right")
        high = np.searchsorted(rows * width + starts, other * width + stops, side="left")
        counts = np.where(inside, np.maximum(high - low, 0), 0)
        first = np.repeat(np.arange(len(rows)), counts)
        offset = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts.append(first)
        seconds.append(np.repeat(low, counts) + offset)
    return np.concatenate(firsts), np.concatenate(seconds)


def _joined(first: _Ints, second: _Ints, *, count: int) -> _Ints:
    """Return the least run of the part that every run belongs to; pairs of runs are of the same part."""
    root = np.arange(count, dtype=np.int64)
    while True:
        a, b = root[first], root[second]
        if np.array_equal(a, b):
            return root
        least = np.minimum(a, b)
        np.minimum.at(root, a, least)
        np.minimum.at(root, b, least)
        while not np.array_equal(root, shorter := root[root]):
            root = shorter


def _reduced(how: np.ufunc, part: _Ints, values: _Ints) -> _Ints:
    order = np.argsort(part, kind="stable")
    begins = np.flatnonzero(np.diff(part[order], prepend=-1))
    result: _Ints = how.reduceat(values[order], begins)
    return result
