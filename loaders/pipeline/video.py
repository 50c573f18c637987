"""Clips of video: runs of frames out of files, decoded by spdl.io, which holds no lock of the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from loaders.base import SampleSource
from loaders.pipeline import ClassPipeline, Item, Target, Transform, UndecodableError

if TYPE_CHECKING:
    from spdl.io import VideoPackets


@dataclass(frozen=True, slots=True)
class ClipTransform(ClassPipeline):
    """Takes runs of frames, as Decord's VideoLoader does."""

    size: int = 224
    """Height and width of a frame in pixels."""
    frames: int = 8
    """Frames of a run."""
    interval: int = 5
    """Frames that are left out between two frames of a run."""
    skip: int = 50
    """Frames that are left out between two runs."""

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("frames", 1), ("interval", 0), ("skip", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"transform.{name}={getattr(self, name)}: expected {least} or more")

    def taken(self, count: int) -> list[int]:
        """Return which frames of a clip of `count` are taken; no run holds the last two, as with Decord."""
        span = self.frames + (self.frames - 1) * self.interval
        starts = range(0, count - 2 - span + 1, span + self.skip)
        return [start + k * (self.interval + 1) for start in starts for k in range(self.frames)]

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Decoding and resizing as one step, for FFmpeg does them in one graph."""
        return (_DecodeFrames(self),)

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[VideoPackets, Target]:
        """Return the clip's packets, not decoded yet, and its class. Raises UndecodableError."""
        import spdl.io

        try:
            packets = spdl.io.demux_video(np.frombuffer(encoded, np.uint8))
        except RuntimeError as error:
            raise UndecodableError(f"not a whole video: {first_sentence(error)}") from error
        return packets, {"label": int(samples.labels[sample_id])}


@dataclass(frozen=True, slots=True)
class _DecodeFrames:
    of: ClipTransform
    name: str = "DecodeFrames"

    def __call__(self, item: Item) -> Item:
        import spdl.io

        taken = self.of.taken(len(item.data))
        if not taken:
            raise UndecodableError(f"a video of {len(item.data)} frames: too short for one run of {self.of.frames}")
        steps = f"scale={self.of.size}:{self.of.size}:flags=bilinear,format=pix_fmts=rgb24"
        try:
            frames = spdl.io.sample_decode_video(item.data, taken, filter_desc=steps)
        except RuntimeError as error:
            raise UndecodableError(f"not a whole video: {first_sentence(error)}") from error
        item.data = torch.from_numpy(spdl.io.to_numpy(spdl.io.convert_frames(frames)))
        return item


def first_sentence(error: Exception) -> str:
    """Return what FFmpeg says in an error of spdl.io, without the place in its source."""
    return str(error).partition(" (/")[0]
