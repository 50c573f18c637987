"""RandomCrop of a volume and its labels, balanced between any place and the foreground."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from loaders.pipeline import Item

_LARGEST: Final = 2
"""Parts of a class among which one is chosen: a body has two kidneys, and what else there is is small."""


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Cuts a cube out of a volume (1, D, H, W) and its labels.

    A share of the crops holds foreground: a class is chosen among those that are there, then one of the two
    largest of its connected parts, and the cube is placed to hold it (or to lie in it, where it is larger). The rest
    lie anywhere. Volumes with an edge below the cube's are padded with their outermost voxels first, by half at either
    side. All this is as in MLPerf Training's image segmentation reference (RandBalancedCrop, pad_to_min_shape).
    """

    edge: int = 128
    """Of the cube in voxels."""
    oversampling: float = 0.4
    """Probability of a crop that holds foreground."""
    name: str = "RandomCrop"

    def __call__(self, item: Item) -> Item:
        """Return the item with copies of the cube, (1, edge, edge, edge), in the place of the whole."""
        image, label = self._padded(item.data), self._padded(item.target["label"])
        z, y, x = self.start(item.generator(self.name), label[0])
        cube = (slice(None), slice(z, z + self.edge), slice(y, y + self.edge), slice(x, x + self.edge))
        # Copied, so that the map of the whole volume can go.
        item.data, item.target["label"] = image[cube].copy(), label[cube].copy()
        return item

    def start(self, rng: np.random.Generator, label: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
        """Return the cube's first voxel for labels (D, H, W), no edge of which is less than the cube's."""
        box = self._foreground(rng, label) if rng.random() < self.oversampling else None
        bounds = zip((0, 0, 0), label.shape, strict=True) if box is None else zip(box.start, box.stop, strict=True)
        starts = []
        for (first, beyond), length in zip(bounds, label.shape, strict=True):
            ends = sorted((first, beyond - self.edge))
            last = length - self.edge
            low, high = (min(max(end, 0), last) for end in ends)
            starts.append(int(rng.integers(low, high + 1)))
        return starts[0], starts[1], starts[2]

    def _foreground(self, rng: np.random.Generator, label: npt.NDArray[np.uint8]) -> Box | None:
        around = _around(label)
        if around is None:
            return None
        # Masks are as large as what they are of, and a body's foreground is a small part of it.
        inside = label[tuple(map(slice, around.start, around.stop))]
        present = [value for value in range(1, int(inside.max()) + 1) if (inside == value).any()]
        boxes = components(inside == present[int(rng.integers(len(present)))])
        largest = sorted(boxes, key=lambda box: box.volume)[-_LARGEST:]
        return largest[int(rng.integers(len(largest)))].moved(around.start)

    def _padded(self, volume: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        lacking = [max(0, self.edge - length) for length in volume.shape[1:]]
        if not any(lacking):
            return volume
        return np.pad(volume, [(0, 0), *((each // 2, each - each // 2) for each in lacking)], mode="edge")


def _around(label: npt.NDArray[np.uint8]) -> Box | None:
    """Return the least box around all that is not background in labels (D, H, W), None where there is nothing."""
    rows = label.max(axis=2)
    z, y = np.flatnonzero(rows.any(axis=1)), np.flatnonzero(rows.any(axis=0))
    if not len(z):
        return None
    x = np.flatnonzero(label[z[0] : z[-1] + 1, y[0] : y[-1] + 1].any(axis=(0, 1)))
    first, last = zip(*((int(found[0]), int(found[-1]) + 1) for found in (z, y, x)), strict=True)
    return Box((first[0], first[1], first[2]), (last[0], last[1], last[2]))


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
