"""Generated pictures with annotated things: to a loader what COCO is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from harness.datasets.coco.annotations import CATEGORY_IDS, Annotations
from harness.datasets.generate import GeneratedDataset, draw_ratio, quantiles
from harness.datasets.pictures import MAX_COLOUR, MAX_LIGHT, encode_to_size, lay, patch, shape_of, tinted
from harness.datasets.worker import Content
from harness.system.values import check_number

if TYPE_CHECKING:
    import pyarrow as pa


ANNOTATIONS: Final = "annotations/instances_train2017.json"

_MIN_BYTES, _MAX_BYTES = 0.1e6, 1e6
_POWER: Final = 3.5
"""Sizes of samples: 0.1 to 1 MB, mean 0.8 MB (MinatoLoader, section 2.2). How they lie between is not published: here
with density (x - least) ** (power - 1), whose mean is least + range * power / (power + 1), so 0.8 MB."""
_MEAN_BYTES: Final = 0.8e6
_BITS_PER_PIXEL: Final = 4.2
"""Of a picture of 640 x 480 and 0.16 MB, COCO's usual one: 118 287 pictures of train2017 take 19.3 GB."""
_RATIOS: Final = {4 / 3: 0.5, 3 / 2: 0.24, 3 / 4: 0.2, 1.0: 0.06}
"""Shares of pictures by their width / height, about as train2017 has them."""

_MEAN_THINGS: Final = 7.2
"""Of a picture that has any: 860 001 annotations on 117 266 pictures of train2017, less 10 498 of crowds."""
_MAX_THINGS: Final = 60
_EMPTY: Final = 0.0086
"""Share of pictures without annotations: 1 021 of train2017's 118 287."""
_MIDDLE_SIDE: Final = 0.076
_SIDE_SIGMA: Final = 1.22
"""Median of sqrt(area) over sqrt(the picture's area), and deviation of its logarithm: 41 % of things lie below 32 x 32
pixels and 24 % above 96 x 96 (cocodataset.org, "Detection evaluation"), on 640 x 480."""
_MIN_SIDE_PX: Final = 6.0
_MAX_SIDE: Final = 0.7
_CORNERS: Final = 26


class CocoPicture(NamedTuple):
    """One picture's size in pixels and its things, those behind before those in front."""

    width: int
    height: int
    categories: list[int]
    outlines: npt.NDArray[np.float64]
    """Corners in pixels, shape (things, corners, 2), x before y, inside the picture."""


@dataclass(frozen=True)
class CocoLike(GeneratedDataset):
    """Pictures of 0.1 to 1 MB, mean 0.8 MB (MinatoLoader, section 2.2), times `scale`, in train2017's layout.

    The pictures of the real COCO are 0.84 MB when decoded and 0.16 MB as they lie on disk, which `scale=0.2` makes.
    """

    version: ClassVar[int] = 4

    samples: int = 60
    scale: float = 0.2
    """Of the published sizes in bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dataset.scale", self.scale, minimum=0.01, maximum=10)

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every picture of a set of `count`, shape (count,)."""
        drawn = quantiles(np.random.default_rng([self.seed, 0xC051]), count)
        published = _MIN_BYTES + (_MAX_BYTES - _MIN_BYTES) * drawn ** (1 / _POWER)
        return (published * self.scale).astype(np.int64)

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the class of each picture's largest box, 1 to 80, 0 without any; shape (samples,)."""
        return np.array([image.label for image in self._read.images.values()], np.int64)

    def path(self, sample_id: int) -> str:
        """Return train2017/NUMBER.jpg, numbered from 1 with twelve digits as COCO does."""
        return f"train2017/{sample_id + 1:012d}.jpg"

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one sample's only file."""
        yield self.path(sample_id), encode_to_size(self.drawn(sample_id), int(self.sizes[sample_id]))

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield the annotations of all pictures."""
        yield ANNOTATIONS, json.dumps(self.annotations, separators=(",", ":")).encode()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return boxes, categories and segments as the adapter of a real tree finds them in the annotations."""
        return self._read.columns(range(1, self.samples + 1))

    @cached_property
    def annotations(self) -> dict[str, object]:
        """Content of instances_train2017.json (cocodataset.org, "Data format")."""
        images: list[dict[str, object]] = []
        entries: list[dict[str, object]] = []
        for number in range(self.samples):
            picture, image_id = self.picture(number), number + 1
            name = self.path(number).rpartition("/")[2]
            images.append({"id": image_id, "file_name": name, "width": picture.width, "height": picture.height})
            things = enumerate(zip(picture.categories, picture.outlines, strict=True), len(entries) + 1)
            entries += [_entry(*thing, image_id, at) for at, thing in things]
        return {
            "info": {"description": "generated, in the layout of COCO 2017", "version": "1.0", "year": 2017},
            "images": images,
            "annotations": entries,
            "categories": [{"id": n, "name": f"category {n}", "supercategory": "any"} for n in CATEGORY_IDS],
        }

    @cached_property
    def _read(self) -> Annotations:
        return Annotations.of(self.annotations, ANNOTATIONS)

    def picture(self, number: int) -> CocoPicture:
        """Return the size and the things of one picture; one of twice the bytes has more pixels and more detail."""
        rng = np.random.default_rng([self.seed, 0xC0C0, number])
        mean = _MEAN_BYTES * self.scale
        area = mean * 8 / _BITS_PER_PIXEL * math.sqrt(int(self.sizes[number]) / mean)
        width, height = shape_of(area, draw_ratio(rng, _RATIOS, 0.03), 32)
        if rng.random() < _EMPTY:
            return CocoPicture(width, height, [], np.empty((0, _CORNERS, 2)))
        count = min(_MAX_THINGS, int(rng.geometric(1 / _MEAN_THINGS)))
        side = math.sqrt(width * height) * _MIDDLE_SIDE * rng.lognormal(0.0, _SIDE_SIGMA, count)
        radius = np.clip(-np.sort(-side), _MIN_SIDE_PX, _MAX_SIDE * min(width, height)) * 0.7
        centres = rng.uniform(0, (width, height), (count, 2))
        # Slanted ellipses, moved into the picture where they leave it.
        angles = np.arange(_CORNERS) * (math.tau / _CORNERS) + rng.uniform(0, math.tau, (count, 1))
        axes = radius[:, None, None] * np.stack((np.ones(count), rng.uniform(0.35, 1.0, count)), 1)[:, None]
        axes = rng.permuted(axes, axis=2)
        slant = rng.uniform(-0.6, 0.6, (count, 1))
        around = centres[:, None] + axes * np.stack((np.cos(angles), np.sin(angles + slant)), axis=2)
        outside = np.minimum(around.min(1), 0) + np.maximum(around.max(1) - (width, height), 0)
        outlines = (around - outside[:, None]).round(2)
        return CocoPicture(width, height, rng.choice(CATEGORY_IDS, count).tolist(), outlines)

    def drawn(self, number: int) -> Image.Image:
        """Draw one picture, in YCbCr."""
        picture = self.picture(number)
        rng = np.random.default_rng([self.seed, 0xC0FE, number])
        ground, *places = rng.integers(0, 1 << 31, (1 + len(picture.categories), 3)).tolist()
        image = patch(self.seed, ground, picture.width, picture.height)
        for category, outline, place in zip(picture.categories, picture.outlines, places, strict=True):
            (left, top), (right, bottom) = np.floor(outline.min(0)), np.ceil(outline.max(0))
            part = patch(self.seed, place, int(right - left) + 1, int(bottom - top) + 1)
            # The kinds stand around the circle of hues in three rings, so that a detector has something to learn.
            kind = CATEGORY_IDS.index(category)
            light, ring = (-40, 0, MAX_LIGHT)[kind // 3 % 3], (30, 55, MAX_COLOUR)[kind % 3]
            lay(image, outline, tinted(part, light, kind / len(CATEGORY_IDS), ring), (int(left), int(top)))
        return image


def _entry(category_id: int, outline: npt.NDArray[np.float64], image_id: int, number: int) -> dict[str, object]:
    """Return one of the entries of `annotations`."""
    x, y = outline.T
    left, top, width, height = x.min(), y.min(), np.ptp(x), np.ptp(y)
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": [round(float(value), 2) for value in (left, top, width, height)],
        "segmentation": [outline.ravel().tolist()],
        "area": round(float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2), 4),
        "iscrowd": 0,
    }
