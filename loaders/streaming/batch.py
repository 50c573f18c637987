"""A batch as it comes over the wire, in parts that are checked and joined."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loaders.streaming.errors import WireError
from loaders.streaming.planner import BatchPlan, Slice
from loaders.streaming.wire import BatchHeader

__all__ = ["Assembly", "RawBatch"]


@dataclass(frozen=True, slots=True)
class RawBatch:
    """One batch as it came: records in frames, and where the images are in them."""

    epoch: int
    batch: int
    ids: npt.NDArray[np.int64]
    """Sample ids, shape (n,)."""
    labels: npt.NDArray[np.int64]
    """Classes, shape (n,)."""
    frames: tuple[memoryview, ...]
    """Whole TFRecord records, one frame per slice."""
    frame_of: npt.NDArray[np.int64]
    """Which frame holds each sample, shape (n,)."""
    offsets: npt.NDArray[np.int64]
    """Of each image in its frame, in bytes, shape (n,)."""
    sizes: npt.NDArray[np.int64]
    """Of each image in bytes, shape (n,)."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Encoded bytes of the images."""
        return int(self.sizes.sum())

    def images(self) -> list[memoryview]:
        """Return the encoded image of every sample, not copied."""
        places = zip(self.frame_of.tolist(), self.offsets.tolist(), self.sizes.tolist(), strict=True)
        return [self.frames[frame][offset : offset + size] for frame, offset, size in places]


@dataclass(frozen=True, slots=True)
class _Part:
    header: BatchHeader
    frames: list[memoryview]
    frame_of: npt.NDArray[np.int64]


@dataclass(slots=True)
class Assembly:
    """A batch that was asked for in parts, some of which have arrived."""

    plan: BatchPlan
    expected: int
    """Number of parts."""
    _parts: dict[int, _Part] = field(default_factory=dict)

    def slices(self, index: int) -> tuple[Slice, ...]:
        """Return the slices of one part."""
        return self.plan.slices[index :: self.expected]

    def add(self, index: int, header: BatchHeader, frames: list[memoryview]) -> None:
        """Add the answer for one part; raise WireError when it is not what was asked for."""
        self._parts[index] = _checked(self.plan, self.slices(index), header, frames)

    @property
    def complete(self) -> bool:
        """Whether every part has arrived."""
        return len(self._parts) == self.expected

    def batch(self) -> RawBatch:
        """Join the parts, in the same order whichever came first."""
        parts = [self._parts[index] for index in range(self.expected)]
        firsts = itertools.accumulate((len(part.frames) for part in parts), initial=0)
        headers = [part.header for part in parts]
        return RawBatch(
            self.plan.epoch,
            self.plan.batch,
            np.concatenate([header.ids for header in headers]),
            np.concatenate([header.labels for header in headers]),
            tuple(frame for part in parts for frame in part.frames),
            np.concatenate([part.frame_of + first for part, first in zip(parts, firsts, strict=False)]),
            np.concatenate([header.offsets for header in headers]),
            np.concatenate([header.sizes for header in headers]),
        )


def _checked(plan: BatchPlan, slices: tuple[Slice, ...], header: BatchHeader, frames: list[memoryview]) -> _Part:
    if len(frames) != len(slices):
        raise WireError(f"{len(frames)} frames for {len(slices)} slices")
    if (header.epoch, header.batch) != (plan.epoch, plan.batch):
        raise WireError(f"it says batch {header.batch} of epoch {header.epoch}")
    if len(header.ids) != sum(piece.records for piece in slices):
        raise WireError(f"{len(header.ids)} records, more or fewer than were asked for")
    frame_of = np.repeat(np.arange(len(frames)), [piece.records for piece in slices])
    ends = np.array([len(frame) for frame in frames])[frame_of]
    # Compared without a sum of two numbers off the wire, which could wrap.
    inside = (header.offsets >= 0) & (header.sizes >= 0) & (header.offsets <= ends)
    if not (inside & (header.sizes <= ends - header.offsets)).all():
        raise WireError("an image lies outside of its frame")
    return _Part(header, frames, frame_of)
