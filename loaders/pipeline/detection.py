"""Object detection: pictures of any size, with the boxes, classes and masks of what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from loaders.base import SampleSource
from loaders.pipeline import FilePipeline, Item, Target, Tensors, Transform
from loaders.pipeline.detection_transforms import Normalize, RandomHorizontalFlip, Resize, ToTensor
from loaders.pipeline.image import decode

_UNUSED: Final = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
"""Numbers from 1 to 90 that stand for nothing in COCO 2017."""
CATEGORY_CLASSES: Final = {
    category: number for number, category in enumerate((c for c in range(1, 91) if c not in _UNUSED), start=1)
}
"""A model's class, 1 to 80, by COCO's category; 0 is the background."""


@dataclass(frozen=True, slots=True)
class DetectionPipeline(FilePipeline):
    """Resize, flip, tensor and normalisation of Table 1 (MinatoLoader), as torchvision's reference training has them.

    A sample's columns are `boxes` (x, y, width, height in pixels, of each thing), `categories` (COCO's numbers) and,
    with `masks`, `segments` (outlines of each thing, x and y in turns).

    Outlines are moved along with the picture, which costs next to nothing, and become masks once, in ToTensor, at the
    size the model sees: in a loader's worker rather than in the training step, which would wait for it, and eight
    pixels a byte, so that they weigh a hundredth of the picture each.
    """

    min_size: int = 800
    """Length of the shorter edge in pixels, as Mask R-CNN takes it (He et al., ICCV 2017, section 3.1)."""
    max_size: int = 1333
    """Most that the longer edge may have; the shorter one is then less (torchvision's maskrcnn_resnet50_fpn)."""
    flip: float = 0.5
    """Probability of a mirrored picture."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted per channel from values in 0 to 1."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divided by per channel after the mean is subtracted."""
    masks: bool = True
    """Whether the model learns masks too."""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if self.min_size < 1:
            raise ValueError(f"transform.min_size={self.min_size}: expected 1 pixel or more")
        if self.max_size < self.min_size:
            raise ValueError(f"transform.max_size={self.max_size}: expected at least min_size, {self.min_size}")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"transform.flip={self.flip}: expected a probability, 0 to 1")
        if min(self.std) <= 0:
            raise ValueError(f"transform.std={self.std}: expected more than 0 for every channel")

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Resize, RandomHorizontalFlip, ToTensor and Normalize."""
        return (
            Resize(self.min_size, self.max_size),
            RandomHorizontalFlip(self.flip),
            ToTensor(),
            Normalize(self.mean, self.std),
        )

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[Image.Image, Target]:
        """Return the RGB picture and its things.

        The target holds `boxes`, float32 of shape (k, 4), x1, y1, x2, y2 in pixels; `classes`, int64 of shape (k,);
        and with masks `outlines`, of each thing a list of float32 arrays of shape (corners, 2), x before y.
        """
        return decode(encoded), self.target(samples, sample_id)

    def target(self, samples: SampleSource, sample_id: int) -> Target:
        """Return what one picture shows, in pixels of its file; raises KeyError naming a column that is missing."""
        boxes = np.array(_column(samples, "boxes", sample_id), np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        categories = _column(samples, "categories", sample_id)
        target: Target = {
            "boxes": boxes,
            "classes": np.array([CATEGORY_CLASSES[category] for category in categories], np.int64),
        }
        if self.masks:
            segments = _column(samples, "segments", sample_id)
            target["outlines"] = [[np.array(one, np.float32).reshape(-1, 2) for one in thing] for thing in segments]
        return target

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return the pictures of a batch, padded with zeros on the right and below, and all their things in one row.

        Data are float32 of shape (n, 3, H, W); labels the classes, int64 of shape (things,). Extra: `boxes` float32
        (things, 4), x1, y1, x2, y2; `counts` int64 (n,), things of each picture; `sizes` int64 (n, 2), height and
        width before padding; with masks `masks` uint8 (things, H, ceil(W / 8)), the leftmost pixel in the highest bit.
        """
        sizes = [tuple(item.data.shape[1:]) for item in items]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        data = torch.zeros(len(items), 3, height, width)
        for place, item in zip(data, items, strict=True):
            place[:, : item.data.shape[1], : item.data.shape[2]] = item.data
        labels, extra = self.collate_things(items, sizes)
        return Tensors(data, labels, extra)

    def collate_things(
        self, items: Sequence[Item], sizes: Sequence[tuple[int, ...]]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return labels and extra, as `collate` has them, of pictures with these heights and widths in pixels."""
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        classes = [item.target["classes"] for item in items]
        extra = {
            "boxes": torch.from_numpy(np.concatenate([item.target["boxes"] for item in items])),
            "counts": torch.tensor([len(one) for one in classes], dtype=torch.int64),
            "sizes": torch.tensor(sizes, dtype=torch.int64),
        }
        if self.masks:
            extra["masks"] = _stacked([item.target["masks"] for item in items], height, -(-width // 8))
        return torch.from_numpy(np.concatenate(classes)), extra


def _column(samples: SampleSource, name: str, sample_id: int) -> list[Any]:
    if name not in samples.columns:
        raise KeyError(f"the dataset has no column {name!r}; object detection needs boxes, categories and segments")
    value: list[Any] | None = samples.columns[name][sample_id].as_py()
    return value or []


def _stacked(masks: Sequence[npt.NDArray[np.uint8]], height: int, bytes_wide: int) -> torch.Tensor:
    stacked = torch.zeros(sum(len(one) for one in masks), height, bytes_wide, dtype=torch.uint8)
    start = 0
    for one in masks:
        stacked[start : start + len(one), : one.shape[1], : one.shape[2]] = torch.from_numpy(one)
        start += len(one)
    return stacked
