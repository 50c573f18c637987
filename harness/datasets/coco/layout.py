"""What a made-up COCO picture shows and where: decided from its number alone, before anything is painted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from harness.datasets.coco.categories import CATEGORY_IDS
from harness.datasets.pictures.shapes import clipped, leaf_outlines

__all__ = ["Picture", "Thing", "annotations_of"]

_MEAN_THINGS: Final = 7.3
"""Of a picture that has any: 860 001 annotations on 117 266 pictures of train2017."""
_MOST_THINGS: Final = 60
_EMPTY: Final = 0.0086
"""Share of pictures without annotations: 1 021 of train2017's 118 287."""
_CROWDS: Final = 0.012
"""Share of annotations that stand for a crowd: 10 498 of train2017's."""
_MIDDLE_SIDE: Final = 0.076
_SIDE_SIGMA: Final = 1.22
"""Median of sqrt(area) over sqrt(the picture's area), and deviation of its logarithm: 41 % of things lie below 32 x 32
pixels and 24 % above 96 x 96 (cocodataset.org, "Detection evaluation"), on 640 x 480."""
_LEAST_SIDE_PX: Final = 6.0
_LARGEST_SIDE: Final = 0.7
_RATIOS: Final = ((4 / 3, 0.5), (3 / 2, 0.24), (3 / 4, 0.2), (1.0, 0.06))
"""Width / height of pictures, and their shares, about as train2017 has them."""
_SMALLEST_PX: Final = 32


@dataclass(frozen=True, slots=True)
class Thing:
    """One annotated thing."""

    category_id: int
    outline: npt.NDArray[np.float64]
    """Corners in pixels, shape (n, 2), x before y, inside the picture."""
    crowd: bool

    @property
    def box(self) -> tuple[float, float, float, float]:
        """x, y, width and height in pixels."""
        (left, top), (right, bottom) = self.outline.min(0), self.outline.max(0)
        return float(left), float(top), float(right - left), float(bottom - top)

    @property
    def area(self) -> float:
        """Area inside the outline, in square pixels."""
        x, y = self.outline.T
        return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture's size and things, those behind before those in front."""

    width: int
    height: int
    things: tuple[Thing, ...]

    @classmethod
    def draw(cls, seed: int, number: int, area: float) -> Picture:
        """Decide a picture of about `area` pixels; the same for the same seed and number."""
        rng = np.random.default_rng([seed, 0xC0C0, number])
        ratios, shares = zip(*_RATIOS, strict=True)
        ratio = float(rng.choice(ratios, p=shares)) * float(rng.lognormal(0.0, 0.03))
        width = max(_SMALLEST_PX, round(math.sqrt(area * ratio)))
        height = max(_SMALLEST_PX, round(math.sqrt(area / ratio)))
        if rng.random() < _EMPTY:
            return cls(width, height, ())
        count = min(_MOST_THINGS, int(rng.geometric(1 / _MEAN_THINGS)))
        unit = math.sqrt(width * height)
        side = np.sort(unit * _MIDDLE_SIDE * rng.lognormal(0.0, _SIDE_SIGMA, count))[::-1]
        radius = np.clip(side, _LEAST_SIDE_PX, _LARGEST_SIDE * min(width, height)) * 0.7
        x, y = rng.uniform(0, width, count), rng.uniform(0, height, count)
        outlines = [clipped(one, width, height).round(2) for one in leaf_outlines(rng, 1.0, x, y, radius)]
        kinds = rng.choice(CATEGORY_IDS, count)
        crowds = rng.random(count) < _CROWDS
        things = (
            Thing(int(kind), outline, bool(crowd)) for kind, outline, crowd in zip(kinds, outlines, crowds, strict=True)
        )
        # Of what an edge of the picture cut off nearly all there is nothing to see.
        return cls(width, height, tuple(thing for thing in things if len(thing.outline) and min(thing.box[2:]) >= 1.0))


def annotations_of(picture: Picture, image_id: int, first_id: int) -> Iterator[dict[str, Any]]:
    """Yield a picture's entries of `annotations`, numbered from `first_id` (cocodataset.org, "Data format")."""
    for number, thing in enumerate(picture.things, first_id):
        segmentation: Any = [[round(float(value), 2) for value in thing.outline.ravel()]]
        area = thing.area
        if thing.crowd:
            segmentation = _run_lengths(picture, thing)
            area = float(sum(segmentation["counts"][1::2]))
        yield {
            "segmentation": segmentation,
            "area": round(area, 4),
            "iscrowd": int(thing.crowd),
            "image_id": image_id,
            "bbox": [round(value, 2) for value in thing.box],
            "category_id": thing.category_id,
            "id": number,
        }


def _run_lengths(picture: Picture, thing: Thing) -> dict[str, Any]:
    """Return a mask as COCO stores crowds: lengths of runs down the columns, the first one outside."""
    mask = Image.new("1", (picture.width, picture.height))
    ImageDraw.Draw(mask).polygon(thing.outline.ravel().tolist(), fill=1)
    inside = np.asarray(mask).T.ravel()
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    bounds = np.concatenate(([0], edges, [inside.size]))
    runs = np.diff(bounds)
    # The mask may end inside, whose run then ends with the picture.
    counts = runs.tolist() if runs[-1] else runs[:-1].tolist()
    return {"counts": counts, "size": [picture.height, picture.width]}
