"""The pipeline of object detection as a graph of DALI operators, beside Python that moves boxes and draws masks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn, types
from PIL import Image

from loaders.base import SampleSource
from loaders.dali.plan import DaliPlan, DataNode, Fed, scalar
from loaders.pipeline import Item, Target, Tensors, Transform, WrappedPipeline
from loaders.pipeline.detection import DetectionPipeline
from loaders.pipeline.detection_transforms import pack_masks
from loaders.pipeline.image import decode

MEAN_GREY_LEVELS: Final = 0.5
"""Most that the pixels of a picture are off on average, of 255: PIL rounds between its two passes of a resize and DALI
does not. 0.1 to 0.2 are usual."""


class DetectionPlan(DaliPlan):
    """Decoding and every step of the picture in DALI, and of boxes and outlines, which are numbers, in Python.

    The steps themselves move a picture's boxes and outlines: they get a stand-in that notes what they would do
    to the picture, and the graph does it.
    """

    note = (
        "DALI's operators run decoding, Resize, RandomHorizontalFlip, ToTensor, Normalize and collation of pictures: "
        "pixels differ from PIL's by 0.2 of 255 grey levels on average, for DALI resizes in floating point; Python "
        "operators run reading, all that is done to boxes and outlines (DALI has none that makes outlines packed "
        "masks) and all random numbers"
    )

    decodes = True

    def __init__(self, pipeline: DetectionPipeline) -> None:
        """Run this pipeline."""
        self.ahead = _DetectionAhead(pipeline)
        self._mean = [255 * mean for mean in pipeline.mean]
        self._std = [255 * std for std in pipeline.std]

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return pictures, float32 of shape (3, H, W), padded to the batch's largest."""
        picture = fn.decoders.image(
            fed["encoded"],
            device="mixed" if device == "cuda" else "cpu",
            output_type=types.RGB,
            # PIL neither turns an image by its EXIF tag nor upsamples chroma by repetition.
            adjust_orientation=False,
            jpeg_fancy_upsampling=True,
        )
        small = fn.resize(picture, size=fed["size"], interp_type=types.INTERP_LINEAR, antialias=True)
        planes = fn.crop_mirror_normalize(
            small, mirror=fed["mirrored"], mean=self._mean, std=self._std, dtype=types.FLOAT, output_layout="CHW"
        )
        return [fn.pad(planes, axes=(1, 2))]


@dataclass(frozen=True, slots=True)
class _StandIn:
    """Stands in for a PIL picture: notes the size that it is to have, and whether it is to be mirrored."""

    encoded: npt.NDArray[np.uint8]
    size: tuple[int, int]
    """Width and height in pixels."""
    mirrored: bool = False

    @property
    def width(self) -> int:
        return self.size[0]

    def resize(self, size: tuple[int, int], resample: Image.Resampling) -> _StandIn:
        assert resample == Image.Resampling.BILINEAR
        return replace(self, size=size)

    def transpose(self, method: Image.Transpose) -> _StandIn:
        assert method == Image.Transpose.FLIP_LEFT_RIGHT
        return replace(self, mirrored=not self.mirrored)


@dataclass(frozen=True)
class _DetectionAhead(WrappedPipeline):
    of: DetectionPipeline

    @property
    def transforms(self) -> tuple[Transform, ...]:
        resize, flip, *_ = self.of.transforms
        return resize, flip, _Masks()

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[_StandIn, Target]:
        try:
            with Image.open(io.BytesIO(encoded)) as image:
                size = image.size
        except Exception:  # noqa: BLE001 - PIL's readers raise any error, and `decode` reports it
            size = decode(encoded).size
        return _StandIn(np.frombuffer(encoded, np.uint8), size), self.of.target(samples, sample_id)

    def collate(self, items: Sequence[Item]) -> Tensors:
        pictures = [item.data for item in items]
        sizes = [(picture.size[1], picture.size[0]) for picture in pictures]
        labels, extra = self.of.collate_things(items, sizes)
        feed = {
            "encoded": [picture.encoded for picture in pictures],
            "size": [np.array(size, np.float32) for size in sizes],
            "mirrored": [scalar(picture.mirrored, np.int32) for picture in pictures],
        }
        return Fed.of(feed, labels, extra)


@dataclass(frozen=True, slots=True)
class _Masks:
    """ToTensor's part in a picture's things."""

    name: str = "ToTensor"

    def __call__(self, item: Item) -> Item:
        if "outlines" in item.target:
            item.target["masks"] = pack_masks(item.target.pop("outlines"), *item.data.size)
        return item
