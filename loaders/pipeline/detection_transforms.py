"""The steps of object detection's pipeline, on a picture, its boxes and its outlines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from loaders.pipeline import Item


def fit_size(width: int, height: int, *, min_size: int, max_size: int) -> tuple[int, int]:
    """Return width and height in pixels after a resize to `min_size`, or to `max_size` where that is less.

    Rounded down, as torchvision's GeneralizedRCNNTransform does.
    """
    scale = min(min_size / min(width, height), max_size / max(width, height))
    # An edge that is to be min_size must not lose a pixel to a product just below it.
    return max(1, int(width * scale + 1e-6)), max(1, int(height * scale + 1e-6))


@dataclass(frozen=True, slots=True)
class Resize:
    """Brings the shorter edge to `min_size` pixels, unless the longer one would then have more than `max_size`.

    May stand after ToTensor and Normalize too: then values are interpolated, and not rounded to grey levels.
    """

    min_size: int
    max_size: int
    name: str = "Resize"
    commutes_with: ClassVar = frozenset({"RandomHorizontalFlip", "ToTensor", "Normalize"})

    def inflates(self, item: Item) -> bool:
        """Return whether the picture is to have more pixels than it has."""
        width, height = _size(item)
        after = fit_size(width, height, min_size=self.min_size, max_size=self.max_size)
        return after[0] * after[1] > width * height

    def __call__(self, item: Item) -> Item:
        """Resize a picture, PIL's or a tensor of shape (3, H, W), its boxes and its outlines or masks."""
        before = _size(item)
        after = fit_size(*before, min_size=self.min_size, max_size=self.max_size)
        if isinstance(item.data, torch.Tensor):
            item.data = resize_tensor(item.data, after)
        else:
            item.data = item.data.resize(after, Image.Resampling.BILINEAR)
        ratio = (np.array(after) / np.array(before)).astype(np.float32)
        item.target["boxes"] = item.target["boxes"] * np.tile(ratio, 2)
        if "outlines" in item.target:
            item.target["outlines"] = [[one * ratio for one in thing] for thing in item.target["outlines"]]
        if "masks" in item.target:
            item.target["masks"] = resize_masks(item.target["masks"], before, after)
        return item


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip:
    """Mirrors a picture and its things, left for right."""

    probability: float
    name: str = "RandomHorizontalFlip"

    def __call__(self, item: Item) -> Item:
        """Mirror a PIL picture, its boxes and its outlines, or leave them."""
        if item.generator(self.name).random() >= self.probability:
            return item
        width = float(item.data.width)
        item.data = item.data.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        boxes = item.target["boxes"].copy()
        boxes[:, 0], boxes[:, 2] = width - item.target["boxes"][:, 2], width - item.target["boxes"][:, 0]
        item.target["boxes"] = boxes
        if "outlines" in item.target:
            turned, moved = np.array((-1, 1), np.float32), np.array((width, 0), np.float32)
            item.target["outlines"] = [[one * turned + moved for one in thing] for thing in item.target["outlines"]]
        return item


@dataclass(frozen=True, slots=True)
class ToTensor:
    """Makes a picture a float32 tensor of shape (3, H, W) with values from 0 to 1, and outlines masks."""

    name: str = "ToTensor"

    def __call__(self, item: Item) -> Item:
        """Turn a PIL picture into a tensor; `outlines` become `masks`, uint8 of shape (k, H, ceil(W / 8))."""
        size: tuple[int, int] = item.data.size
        pixels = np.asarray(item.data)
        planes = np.empty((3, size[1], size[0]), np.float32)
        for channel, plane in enumerate(planes):  # in one pass each; torch takes one to turn and one to divide
            np.divide(pixels[..., channel], np.float32(255), out=plane)
        item.data = torch.from_numpy(planes)
        if "outlines" in item.target:
            item.target["masks"] = pack_masks(item.target.pop("outlines"), *size)
        return item


@dataclass(frozen=True, slots=True)
class Normalize:
    """Subtracts a mean and divides by a deviation, per channel."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    name: str = "Normalize"

    def __call__(self, item: Item) -> Item:
        """Normalise a tensor of shape (3, H, W), in place."""
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (self.mean, self.std))
        item.data = item.data.sub_(mean).div_(std)
        return item


def _size(item: Item) -> tuple[int, int]:
    """Return width and height of a picture, PIL's or a tensor."""
    if isinstance(item.data, torch.Tensor):
        return int(item.data.shape[2]), int(item.data.shape[1])
    width, height = item.data.size
    return width, height


def pack_masks(things: list[list[npt.NDArray[np.float32]]], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return the pixels inside any of each thing's outlines, a bit each; shape (things, height, ceil(width / 8)).

    Those on an outline count as inside: some 2.5 % more pixels than pycocotools finds.
    """
    masks = np.zeros((len(things), height, -(-width // 8)), np.uint8)
    for mask, outlines in zip(masks, things, strict=True):
        corners = np.concatenate(outlines) if outlines else np.zeros((1, 2), np.float32)
        left, top = np.maximum(np.floor(corners.min(0)), 0).astype(int)
        right, bottom = np.minimum(np.ceil(corners.max(0)).astype(int) + 1, (width, height))
        left -= left % 8
        if right <= left or bottom <= top:
            continue
        # Most things are small: to draw them alone costs a tenth of drawing on the whole picture.
        part = Image.new("1", (int(right - left), int(bottom - top)))
        draw = ImageDraw.Draw(part)
        for outline in outlines:
            draw.polygon((outline - (left, top)).ravel().tolist(), fill=1)
        packed = np.frombuffer(part.tobytes(), np.uint8).reshape(part.height, -1)
        mask[top:bottom, left // 8 : left // 8 + packed.shape[1]] = packed
    return masks


def resize_tensor(picture: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return a float32 tensor (3, H, W) at width and height `size`, by the filter of PIL's bilinear resize.

    PIL rounds to whole grey levels after each of its two passes, this rounds nowhere.
    """
    width, height = size
    whole = torch.nn.functional.interpolate(
        picture[None], (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return whole[0]


def resize_masks(
    masks: npt.NDArray[np.uint8], before: tuple[int, int], after: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Return masks (k, H, ceil(W / 8)), a bit a pixel, for a picture that had width and height `before`.

    Every pixel becomes that of the nearest one: an outline drawn at the new size would differ by up to one old pixel.
    """
    width, height = after
    found = np.zeros((len(masks), height, -(-width // 8)), np.uint8)
    # The old pixel in which the middle of each new one lies.
    columns, rows = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(before, after, strict=True)
    )
    for old, new in zip(masks, found, strict=True):
        # Most things are small: what has no pixel of a thing is passed over.
        there = np.flatnonzero(old.any(axis=1)[rows])
        bits = np.unpackbits(old[rows[there]], axis=1)[:, columns]
        new[there] = np.packbits(bits, axis=1)
    return found
