"""RandomCrop of a volume and its labels, balanced between any place and the foreground."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from loaders.pipeline import Item
from loaders.pipelines.components import Box, components

__all__ = ["RandomCrop"]

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
            most = length - self.edge
            low, high = (min(max(end, 0), most) for end in ends)
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

    def _padded(self, volume: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
