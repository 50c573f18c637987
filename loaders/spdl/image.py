"""The image transform of `loaders.pipeline.image` through spdl.io: FFmpeg decodes, crops, resizes and mirrors.

FFmpeg takes the four inks of a CMYK or YCCK JPEG for three colours and transparency. PIL decodes those few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import spdl.io
import torch
from PIL import Image
from spdl.io.utils import set_ffmpeg_log_level

from loaders.base import SampleSource
from loaders.pipeline import Data, FilePipeline, Item, Target, Tensors, Transform, UndecodableError, labels_of
from loaders.pipeline.image import ImageTransform, decode
from loaders.pipeline.video import first_sentence

_SCALE: Final = "bilinear+accurate_rnd+full_chroma_int+full_chroma_inp"
_STRICT: Final = spdl.io.decode_config(decoder_options={"err_detect": "explode"})
"""By default FFmpeg returns the decodable part of a damaged picture, grey below the damage."""

_JPEG: Final = b"\xff\xd8"
_MARKER: Final = 0xFF
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame; the three others are of tables, or mean nothing."""

_FATAL: Final = 8
"""AV_LOG_FATAL: FFmpeg would report a damaged image on stderr, and the loader raises it anyway."""
set_ffmpeg_log_level(_FATAL)


@dataclass(frozen=True, slots=True)
class SpdlImages(FilePipeline):
    """The same crops as `of` draws; one filter graph makes them, without the interpreter's lock."""

    of: ImageTransform
    notes: ClassVar[tuple[str, ...]] = (
        "FFmpeg decodes and resizes with other filters, of the chroma above all: pixels of photographs differ from "
        "PIL's by 1 to 2 of 255 grey levels on average, strong colours by up to 13; JPEGs of four inks are PIL's own",
    )

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Decoding, crop and flip as one step, for FFmpeg does them in one graph."""
        return (_DecodeAndCrop(self.of),)

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[Data, Target]:
        """Return the image's packet, not decoded yet, or PIL's image; and its class. Raises UndecodableError."""
        target = {"label": int(samples.labels[sample_id])}
        if is_cmyk_jpeg(encoded):
            return decode(encoded), target
        try:
            return spdl.io.demux_image(np.frombuffer(encoded, np.uint8)), target
        except RuntimeError as error:
            raise UndecodableError(f"not a whole image: {first_sentence(error)}") from error

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return float32 images of shape (n, 3, size, size) and int64 classes of shape (n,)."""
        frames = [item.data for item in items if not isinstance(item.data, np.ndarray)]
        decoded = iter(spdl.io.to_numpy(spdl.io.convert_frames(frames)) if frames else ())
        rows = [item.data if isinstance(item.data, np.ndarray) else next(decoded) for item in items]
        pixels = torch.from_numpy(np.stack(rows))
        planes = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        factor = torch.tensor([1 / (255 * each) for each in self.of.std]).view(3, 1, 1)
        offset = torch.tensor([mean / std for mean, std in zip(self.of.mean, self.of.std, strict=True)]).view(3, 1, 1)
        return Tensors(planes.mul_(factor).sub_(offset), labels_of(items), {})


@dataclass(frozen=True, slots=True)
class _DecodeAndCrop:
    of: ImageTransform
    name: str = "DecodeAndCrop"

    def __call__(self, item: Item) -> Item:
        if isinstance(item.data, Image.Image):
            for step in self.of.transforms[:-1]:  # all but the normalisation, which `collate` does
                item = step(item)
            item.data = np.asarray(item.data)
            return item
        size, width, height = self.of.size, item.data.width, item.data.height
        crop = self.of.crop_box(seed=item.seed, epoch=item.epoch, sample_id=item.id, width=width, height=height)
        steps = [
            f"crop={crop.width}:{crop.height}:{crop.x}:{crop.y}:exact=1",
            f"scale={size}:{size}:flags={_SCALE}",
            *(["hflip"] if crop.flip else []),
            "format=pix_fmts=rgb24",
        ]
        try:
            item.data = spdl.io.decode_packets(item.data, filter_desc=",".join(steps), decode_config=_STRICT)
        except RuntimeError as error:
            raise UndecodableError(f"not a whole image: {first_sentence(error)}") from error
        if item.data.width != size:
            raise UndecodableError("not a whole image: FFmpeg finds it damaged")
        return item


def is_cmyk_jpeg(encoded: bytes | memoryview) -> bool:
    """Return whether this is a JPEG of four components, by its frame header (ITU-T T.81, B.2.2)."""
    if encoded[:2] != _JPEG:
        return False
    at = 2
    while at + 9 < len(encoded) and encoded[at] == _MARKER:
        kind = encoded[at + 1]
        if kind in _FRAMES:
            return encoded[at + 9] == 4
        # A marker may be preceded by any number of fill bytes.
        at += 1 if kind == _MARKER else 2 + int.from_bytes(encoded[at + 2 : at + 4])
    return False
