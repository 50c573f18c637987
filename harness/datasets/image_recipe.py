"""What made-up pictures in classes are: how many of which sizes, and every picture from its id alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from harness.datasets.pictures.collage import sheets
from harness.datasets.pictures.jpeg import encode_to_size
from harness.datasets.pictures.photograph import photograph
from harness.datasets.pictures.style import Style
from harness.datasets.quantiles import normal_deviates
from harness.datasets.recipe import Content, recipe_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ImageRecipe"]

_VERSION: Final = 3
"""Raised with every change that alters a picture, so that no older tree is taken for a new one."""

_BITS_PER_PIXEL: Final = 4.9
"""Of a 500 x 375 JPEG of 115 kB."""

_TOLERANCE: Final = 0.07
_TRIES: Final = 3

_SHAPES: Final = ((4 / 3, 0.55), (3 / 4, 0.2), (3 / 2, 0.15), (1.0, 0.06), (16 / 9, 0.04))
"""Width / height of pictures, and their shares."""


@dataclass(frozen=True)
class ImageRecipe:
    """Pictures in classes, their encoded sizes log-normal; equal recipes make equal bytes."""

    samples: int
    classes: int
    mean_bytes: float
    """Mean encoded size in bytes."""
    sigma: float
    """Deviation of ln(size)."""
    seed: int
    noun: ClassVar[str] = "pictures"
    together: ClassVar[int] = 1

    def key(self) -> str:
        """Return 16 hex digits that tell this recipe from any other."""
        return recipe_key(self, _VERSION)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Wanted size of every sample in bytes, shape (samples,)."""
        z = normal_deviates(np.random.default_rng([self.seed, 0x51]), self.samples)
        middle = math.log(self.mean_bytes) - self.sigma**2 / 2
        return np.exp(middle + self.sigma * z).astype(np.int64)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """Class of every sample, shape (samples,)."""
        return np.arange(self.samples, dtype=np.int64) * self.classes // self.samples

    def paths(self) -> tuple[str, ...]:
        """Return class/name.jpg of every sample; sorted, they stand in the order of their ids."""
        return tuple(_path(sample_id, label) for sample_id, label in enumerate(self.labels.tolist()))

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one sample's only file."""
        yield _path(sample_id, int(self.labels[sample_id])), self.image(sample_id)

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield nothing: every file is a sample's."""
        yield from ()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return nothing: a picture has its class alone."""
        return {}

    def describe(self) -> Mapping[str, Any]:
        """Return nothing beside the recipe's own values."""
        return {}

    def image(self, sample_id: int) -> bytes:
        """Return one sample as a JPEG file."""
        wanted = int(self.sizes[sample_id])
        # A picture of twice the bytes has more pixels and more detail, about the square root of two of each.
        area = self.mean_bytes * 8 / _BITS_PER_PIXEL * math.sqrt(wanted / self.mean_bytes)
        for _ in range(_TRIES):
            image = encode_to_size(self._picture(sample_id, area), wanted)
            if abs(len(image) / wanted - 1) < _TOLERANCE:
                break
            # Some pictures, mostly of sky, are too plain for so many bytes, others too busy for so few.
            area *= wanted / len(image)
        return image

    def _picture(self, sample_id: int, area: float) -> Image.Image:
        rng = np.random.default_rng([self.seed, 0x1D, sample_id])
        area *= float(rng.lognormal(0.0, 0.08))
        ratios, shares = zip(*_SHAPES, strict=True)
        ratio = float(rng.choice(ratios, p=shares)) * float(rng.lognormal(0.0, 0.02))
        width, height = max(16, round(math.sqrt(area * ratio))), max(16, round(math.sqrt(area / ratio)))
        style = _style(self.seed, int(self.labels[sample_id]))
        cut = sheets(self.seed, self.mean_bytes * 8 / _BITS_PER_PIXEL)
        return photograph(rng, style, cut, width=width, height=height)


def _path(sample_id: int, label: int) -> str:
    return f"c{label:05d}/c{label:05d}_{sample_id:08d}.jpg"


@lru_cache(maxsize=1024)
def _style(seed: int, label: int) -> Style:
    return Style.of_class(seed, label)
