"""What a made-up COCO is: how many pictures of which sizes, and every file of it from its number alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from harness.datasets.coco.annotations import Annotations
from harness.datasets.coco.categories import CATEGORY_IDS, described
from harness.datasets.coco.layout import Picture, annotations_of
from harness.datasets.pictures.collage import Sheets, lay, sheets, tinted
from harness.datasets.pictures.jpeg import encode_to_size
from harness.datasets.quantiles import quantiles
from harness.datasets.recipe import Content, recipe_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ANNOTATIONS", "CocoRecipe"]

ANNOTATIONS: Final = "annotations/instances_train2017.json"
_FOLDER: Final = "train2017"
_VERSION: Final = 2
"""Raised with every change that alters a file, so that no older tree is taken for a new one."""

_LEAST_BYTES: Final = 0.1e6
_MOST_BYTES: Final = 1e6
_POWER: Final = 3.5
"""Sizes of samples: 0.1 to 1 MB, mean 0.8 MB (MinatoLoader, section 2.2). How they lie between is not published: here
with density (x - least) ** (power - 1), whose mean is least + range * power / (power + 1), so 0.8 MB."""
_MEAN_BYTES: Final = 0.8e6
_BITS_PER_PIXEL: Final = 4.2
"""Of a picture of 640 x 480 and 0.16 MB, COCO's usual one: 118 287 pictures of train2017 take 19.3 GB."""


@dataclass(frozen=True)
class CocoRecipe:
    """Pictures with annotated things, in train2017's layout; equal recipes make equal bytes."""

    samples: int
    scale: float
    """Of the published sizes in bytes."""
    seed: int
    noun: ClassVar[str] = "pictures"
    together: ClassVar[int] = 1

    def key(self) -> str:
        """Return 16 hex digits that tell this recipe from any other."""
        return recipe_key(self, _VERSION)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Wanted size of every picture in bytes, shape (samples,)."""
        drawn = quantiles(np.random.default_rng([self.seed, 0xC051]), self.samples)
        published = _LEAST_BYTES + (_MOST_BYTES - _LEAST_BYTES) * drawn ** (1 / _POWER)
        return (published * self.scale).astype(np.int64)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Class of each picture's largest box, 1 to 80, 0 without any; shape (samples,)."""
        return np.array([image.label for image in self._read.images.values()], np.int64)

    def paths(self) -> tuple[str, ...]:
        """Return train2017/NUMBER.jpg of every sample, numbered from 1 with twelve digits as COCO does."""
        return tuple(_path(number) for number in range(self.samples))

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one sample's only file."""
        yield _path(sample_id), encode_to_size(self.painted(sample_id), int(self.sizes[sample_id]))

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield the annotations of all pictures."""
        yield ANNOTATIONS, json.dumps(self.annotations, separators=(",", ":")).encode()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return boxes, categories and segments as the adapter of a real tree finds them in the annotations."""
        return self._read.columns(range(1, self.samples + 1))

    def describe(self) -> Mapping[str, Any]:
        """Return nothing beside the recipe's own values."""
        return {}

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """Return what instances_train2017.json holds (cocodataset.org, "Data format")."""
        images: list[dict[str, Any]] = []
        entries: list[dict[str, Any]] = []
        for number in range(self.samples):
            picture = self.picture(number)
            images.append(
                {
                    "license": 1,
                    "file_name": _path(number).rpartition("/")[2],
                    "height": picture.height,
                    "width": picture.width,
                    "date_captured": "2017-01-01 00:00:00",
                    "id": number + 1,
                }
            )
            entries += annotations_of(picture, number + 1, len(entries) + 1)
        return {
            "info": {"description": "made up, in the layout of COCO 2017", "version": "1.0", "year": 2017},
            "licenses": [{"id": 1, "name": "made up", "url": ""}],
            "images": images,
            "annotations": entries,
            "categories": described(),
        }

    @cached_property
    def _read(self) -> Annotations:
        return Annotations.of(self.annotations, ANNOTATIONS)

    def picture(self, number: int) -> Picture:
        """Return what one picture shows; one of twice the bytes has more pixels and more detail."""
        mean = _MEAN_BYTES * self.scale
        area = mean * 8 / _BITS_PER_PIXEL * math.sqrt(int(self.sizes[number]) / mean)
        return Picture.draw(self.seed, number, area)

    def painted(self, number: int) -> Image.Image:
        """Paint one picture, in YCbCr."""
        picture = self.picture(number)
        rng = np.random.default_rng([self.seed, 0xC0FE, number])
        cut = sheets(self.seed, _MEAN_BYTES * self.scale * 8 / _BITS_PER_PIXEL)
        ground, *places = map(tuple, rng.integers(0, 1 << 31, (1 + len(picture.things), 2)).tolist())
        image = cut.patch(number, ground, picture.width, picture.height)
        for thing, place in zip(picture.things, places, strict=True):
            _lay_thing(image, cut, place, thing.category_id, thing.outline)
        return image


def _lay_thing(
    image: Image.Image, cut: Sheets, at: tuple[int, int], category_id: int, outline: npt.NDArray[np.float64]
) -> None:
    (left, top), (right, bottom) = np.floor(outline.min(0)), np.ceil(outline.max(0))
    patch = cut.patch(category_id, at, int(right - left) + 1, int(bottom - top) + 1)
    # The kinds stand around the circle of hues in three rings, so that a detector has something to learn.
    place = CATEGORY_IDS.index(category_id)
    angle, ring = math.tau * place / len(CATEGORY_IDS), (30, 55, 80)[place % 3]
    shift = ((-40, 0, 40)[place // 3 % 3], round(ring * math.cos(angle)), round(ring * math.sin(angle)))
    lay(image, outline, tinted(patch, *shift), (int(left), int(top)))


def _path(number: int) -> str:
    return f"{_FOLDER}/{number + 1:012d}.jpg"
