"""Reads COCO's annotation file: which things every picture shows, as training takes them.

What counts follows torchvision's reference training of detectors (references/detection/coco_utils.py): crowds are left
out, boxes are cut at the edges of their picture, and those without an area left are dropped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa


CATEGORY_IDS: Final = tuple(sorted(set(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}))
"""Numbers of COCO's 80 categories; a model's class is a position here plus 1, 0 being the background."""
_CLASSES: Final = {category: number for number, category in enumerate(CATEGORY_IDS, 1)}

_MIN_NUMBERS: Final = 6
"""Of an outline: three corners."""
_ROUNDING_PX: Final = 0.02
"""Boxes are written with two digits, so that one at the edge may seem to leave it."""


@dataclass(slots=True)
class Image:
    """One picture as the file describes it."""

    file_name: str
    width: int
    height: int
    boxes: list[list[float]] = field(default_factory=list)
    """x, y, width, height in pixels, inside the picture."""
    categories: list[int] = field(default_factory=list)
    segments: list[list[npt.NDArray[np.float32]]] = field(default_factory=list)
    """Outlines of each thing: x and y in turns, in pixels."""

    @property
    def label(self) -> int:
        """Class of the largest box, 1 to 80 in the order of COCO's numbers; 0 without boxes."""
        if not self.boxes:
            return 0
        areas = [width * height for _, _, width, height in self.boxes]
        return _CLASSES[self.categories[areas.index(max(areas))]]

    def add(self, entry: Mapping[str, Any], counts: Counter[str]) -> None:
        """Add an annotation; raises KeyError, TypeError or ValueError where its form is wrong."""
        if entry.get("iscrowd", 0):
            counts["crowds"] += 1
            return
        box = [float(value) for value in entry["bbox"]]
        if len(box) != 4 or not all(map(math.isfinite, box)):
            raise ValueError(f"has the box {entry['bbox']}, expected x, y, width and height")
        category = int(entry["category_id"])
        if category not in _CLASSES:
            raise ValueError(f"has category {category}, which is none of COCO's 80")
        left, right = (min(max(x, 0.0), self.width) for x in (box[0], box[0] + box[2]))
        top, bottom = (min(max(y, 0.0), self.height) for y in (box[1], box[1] + box[3]))
        if right <= left or bottom <= top:
            counts["boxes_dropped"] += 1
            return
        self.segments.append(_outlines(entry.get("segmentation") or []))
        kept = [left, top, right - left, bottom - top]
        counts["boxes_cut"] += max(abs(new - old) for new, old in zip(kept, box, strict=True)) > _ROUNDING_PX
        self.boxes.append(kept)
        self.categories.append(category)


@dataclass(frozen=True, slots=True)
class Annotations:
    """What an annotation file says."""

    images: Mapping[int, Image]
    """By COCO's number, in the order of the file."""
    counts: Mapping[str, int]
    """Of crowds left out, of boxes cut at an edge, and of boxes that were dropped."""
    malformed: Mapping[int, str]
    """What is wrong with pictures that cannot be used, by COCO's number; they are not among the images."""

    @classmethod
    def of(cls, content: Any, where: str) -> Annotations:
        """Read the content of an annotation file; raises DatasetError naming `where` when it is none.

        A ValueError that is raised within is among its causes."""
        at = "`images`"
        try:
            images = {
                int(one["id"]): Image(str(one["file_name"]), int(one["width"]), int(one["height"]))
                for one in content["images"]
            }
            if len(images) != len(content["images"]):
                raise ValueError("two images have the same id")
            entries = []
            for position, entry in enumerate(content["annotations"]):
                at = f"annotation number {position}"
                entries.append((int(entry["image_id"]), entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(
                f"{where}: not as COCO's format asks ({at}: {type(error).__name__}: {error}); "
                "expected lists `images`, `annotations` (each with `image_id`) and `categories`"
            ) from error
        counts: Counter[str] = Counter(crowds=0, boxes_cut=0, boxes_dropped=0)
        malformed = {
            number: f"is said to be {image.file_name}, {image.width} x {image.height} pixels"
            for number, image in images.items()
            if min(image.width, image.height) < 1
            or image.file_name[:1] in ("", "/")
            or ".." in image.file_name.split("/")
        }
        for position, (number, entry) in enumerate(entries):
            if number not in images:
                malformed.setdefault(number, "has annotations and is not in `images`")
                continue
            try:
                images[number].add(entry, counts)
            except (KeyError, TypeError, ValueError) as error:
                reason = f"misses {error}" if isinstance(error, KeyError) else str(error)
                name = entry.get("id", f"number {position}")
                malformed.setdefault(number, f"has an annotation ({name}) that {reason}")
        return cls({n: image for n, image in images.items() if n not in malformed}, dict(counts), malformed)

    def columns(self, numbers: Iterable[int]) -> dict[str, pa.Array]:
        """Return boxes, categories and segments of these pictures, as Samples.columns holds them."""
        import pyarrow as pa

        images = [self.images[number] for number in numbers]
        floats = pa.list_(pa.float32())
        return {
            "boxes": pa.array([image.boxes for image in images], pa.list_(floats)),
            "categories": pa.array([image.categories for image in images], pa.list_(pa.int64())),
            "segments": pa.array([image.segments for image in images], pa.list_(pa.list_(floats))),
        }


def _outlines(segmentation: Any) -> list[npt.NDArray[np.float32]]:
    if not isinstance(segmentation, list):
        raise ValueError("has run lengths for an outline, and is no crowd")
    outlines = [np.array(one, np.float32) for one in segmentation]
    for one in outlines:
        if one.ndim != 1 or one.size < _MIN_NUMBERS or one.size % 2 or not np.isfinite(one).all():
            raise ValueError("has an outline that is not x and y in turns, for three corners or more")
    return outlines
