"""The image transform that every loader applies: decode, random resized crop, flip, normalise.

The random numbers of a sample depend on (seed, epoch, sample id) alone, so every engine that takes its crops
from here feeds the training step the same pixels, whatever its order, workers or threads.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError

from loaders.base import SampleSource
from loaders.pipeline import ClassPipeline, Item, Target, Transform, UndecodableError

ATTEMPTS: Final = 10
"""Crops tried before the central one is taken, as torchvision's RandomResizedCrop tries them."""

# A few of ImageNet's files have damaged EXIF data, which no pixel depends on.
warnings.filterwarnings("ignore", message="(Possibly )?[Cc]orrupt EXIF data", category=UserWarning)

_ORDER: Final = 0
_CROP: Final = 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of an image that is kept, in pixels of the decoded image, and whether it is mirrored."""

    x: int
    y: int
    width: int
    height: int
    flip: bool

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge, as PIL names a box."""
        return self.x, self.y, self.x + self.width, self.y + self.height


@dataclass(frozen=True, slots=True)
class ImageTransform(ClassPipeline):
    """Random resized crop, horizontal flip and normalisation, by default as ImageNet training has them.

    Data of a batch are float32 of shape (n, 3, size, size).
    """

    size: int = 224
    """Height and width of the result in pixels."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Least and greatest area of a crop, as a share of the image's."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and greatest width / height of a crop."""
    flip: float = 0.5
    """Probability of a mirrored crop."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted per channel from values in 0 to 1."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divided by per channel after the mean is subtracted."""

    def __post_init__(self) -> None:
        # Hydra passes lists; a frozen transform is compared and pickled by value.
        for name in ("scale", "ratio", "mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if self.size < 1:
            raise ValueError(f"transform.size={self.size}: expected 1 pixel or more")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"transform.scale={self.scale}: expected 0 < least <= greatest <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"transform.ratio={self.ratio}: expected 0 < least <= greatest")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"transform.flip={self.flip}: expected a probability, 0 to 1")
        if min(self.std) <= 0:
            raise ValueError(f"transform.std={self.std}: expected more than 0 for every channel")

    def draws(self, *, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Draw what the crops of samples need, before their widths and heights are known.

        Returns float64 of shape (n, 4 * ATTEMPTS + 1): per attempt a width and a height (both in units of the
        square root of the image's area), then a left and an upper position (0 to 1 of the room that is left),
        and last 1.0 to mirror or 0.0 to leave as it is.
        """
        uniform = _uniform(seed, epoch, _CROP, ids, 4 * ATTEMPTS + 1)
        area, shape = uniform[:, :ATTEMPTS], uniform[:, ATTEMPTS : 2 * ATTEMPTS]
        side = np.sqrt(self.scale[0] + area * (self.scale[1] - self.scale[0]))
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        stretch = np.exp((low + shape * (high - low)) / 2)
        mirror = uniform[:, -1:] < self.flip
        return np.concatenate(
            (side * stretch, side / stretch, uniform[:, 2 * ATTEMPTS : -1], mirror.astype(np.float64)), axis=1
        )

    def crop(self, draw: npt.NDArray[np.float64], width: int, height: int) -> Crop:
        """Return the crop that one row of `draws` means for an image of this width and height in pixels.

        The first attempt that fits is taken, else the largest central crop within the bounds of `ratio`.
        """
        side = math.sqrt(width * height)
        flip = bool(draw[-1])
        for attempt in range(ATTEMPTS):
            across, down, left, top = (float(draw[attempt + part * ATTEMPTS]) for part in range(4))
            wide, high = math.floor(across * side + 0.5), math.floor(down * side + 0.5)
            if 0 < wide <= width and 0 < high <= height:
                x, y = math.floor(left * (width - wide + 1)), math.floor(top * (height - high + 1))
                return Crop(x, y, wide, high, flip)
        wide = min(width, math.floor(height * self.ratio[1] + 0.5))
        high = min(height, math.floor(width / self.ratio[0] + 0.5))
        return Crop((width - wide) // 2, (height - high) // 2, wide, high, flip)

    def flipped(self, *, seed: int, epoch: int, sample_id: int) -> bool:
        """Return whether one sample is mirrored in one epoch."""
        last = _uniform(seed, epoch, _CROP, np.array([sample_id], np.int64), 4 * ATTEMPTS + 1)[0, -1]
        return bool(last < self.flip)

    def crop_box(self, *, seed: int, epoch: int, sample_id: int, width: int, height: int) -> Crop:
        """Return the crop of one sample in one epoch."""
        draw = self.draws(seed=seed, epoch=epoch, ids=np.array([sample_id], np.int64))[0]
        return self.crop(draw, width, height)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Crop, flip and normalisation as the steps of a pipeline."""
        return _RandomResizedCrop(self), _MirrorImage(self), _NormalizeImage(self)

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[Image.Image, Target]:
        """Return the RGB image and its class."""
        return decode(encoded), {"label": int(samples.labels[sample_id])}

    def apply(self, encoded: bytes | memoryview, *, seed: int, epoch: int, sample_id: int) -> torch.Tensor:
        """Decode and transform one encoded image; return float32 of shape (3, size, size).

        Raises UndecodableError for bytes that are not a whole image.
        """
        item = Item(sample_id, seed, epoch, decode(encoded))
        for transform in self.transforms:
            item = transform(item)
        data: torch.Tensor = item.data
        return data


@dataclass(frozen=True, slots=True)
class _RandomResizedCrop:
    of: ImageTransform
    name: str = "RandomResizedCrop"

    def __call__(self, item: Item) -> Item:
        width, height = item.data.size
        crop = self.of.crop_box(seed=item.seed, epoch=item.epoch, sample_id=item.id, width=width, height=height)
        # Cropped before it is resized, as torchvision and DALI do: resize(box=) would let pixels from beyond
        # the edge of the crop into the filter.
        item.data = item.data.crop(crop.box).resize((self.of.size, self.of.size), Image.Resampling.BILINEAR)
        return item


@dataclass(frozen=True, slots=True)
class _MirrorImage:
    of: ImageTransform
    name: str = "RandomHorizontalFlip"

    def __call__(self, item: Item) -> Item:
        if self.of.flipped(seed=item.seed, epoch=item.epoch, sample_id=item.id):
            item.data = item.data.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return item


@dataclass(frozen=True, slots=True)
class _NormalizeImage:
    of: ImageTransform
    name: str = "Normalize"

    def __call__(self, item: Item) -> Item:
        size, mean, std = self.of.size, self.of.mean, self.of.std
        pixels = torch.frombuffer(bytearray(item.data.tobytes()), dtype=torch.uint8)
        planes = pixels.view(size, size, 3).permute(2, 0, 1)
        factor = torch.tensor([1 / (255 * each) for each in std]).view(3, 1, 1)
        offset = torch.tensor([middle / each for middle, each in zip(mean, std, strict=True)]).view(3, 1, 1)
        floats = planes.to(torch.float32, memory_format=torch.contiguous_format)
        item.data = floats.mul_(factor).sub_(offset)
        return item


def decode(encoded: bytes | memoryview) -> Image.Image:
    """Decode an image to RGB, whole and without regard to its EXIF orientation.

    Raises UndecodableError for bytes that are not a whole image.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            if image.mode.startswith("I;16"):  # which PIL would cut off at 255
                return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
            return image.convert("RGB")
    except UnidentifiedImageError as error:
        raise UndecodableError(f"not a whole image: {len(encoded)} bytes of no known format") from error
    except Exception as error:  # PIL's decoders raise whatever their parsing runs into
        raise UndecodableError(f"not a whole image: {error}") from error


def epoch_order(count: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the ids 0 to count-1 in the order of one epoch, the same for every loader that reads files."""
    keys = _uniform(seed, epoch, _ORDER, np.arange(count, dtype=np.int64), 1)[:, 0]
    return np.argsort(keys, kind="stable").astype(np.int64)


def _uniform(seed: int, epoch: int, stream: int, ids: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for each id, shape (n, count), by hashing and so without any state.

    The mixing function is splitmix64's (Steele, Lea and Flood, OOPSLA 2014); NumPy promises no equal streams
    across its versions, and a generator made for every sample costs more than the crop.
    """
    key = np.zeros(1, np.uint64)
    for part in (seed, epoch, stream):
        key = _mix(key + np.uint64((part * _GOLDEN + _GOLDEN) & _MASK))
    rows = _mix(key + ids.astype(np.uint64) * np.uint64(_GOLDEN))
    columns = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    bits = _mix(rows[:, None] + columns[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
