"""A batch of records before they are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawBatch:
    """One batch before decoding: records in frames, and where the images are in them."""

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
    checksums: npt.NDArray[np.int64]
    """Of each record's payload as it was indexed, masked CRC-32C, shape (n,)."""
    pieces: tuple[int, ...] = ()
    """Numbers of the planned batches that it was joined from; none where it is the planned batch itself."""

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[object, ...]:
        # Views cannot be pickled: a worker of DataLoader sends a copy.
        fields = (self.epoch, self.batch, self.ids, self.labels, tuple(map(bytes, self.frames)))
        return _unpickle, (*fields, self.frame_of, self.offsets, self.sizes, self.checksums, self.pieces)

    @property
    def planned(self) -> tuple[int, ...]:
        """Numbers of the planned batches whose records it has."""
        return self.pieces or (self.batch,)

    @property
    def nbytes(self) -> int:
        """Encoded bytes of the images."""
        return int(self.sizes.sum())

    def images(self) -> list[memoryview]:
        """Return the encoded image of every sample, not copied."""
        places = zip(self.frame_of.tolist(), self.offsets.tolist(), self.sizes.tolist(), strict=True)
        return [self.frames[frame][offset : offset + size] for frame, offset, size in places]


def _unpickle(epoch: int, batch: int, ids: _Ints, labels: _Ints, frames: tuple[bytes, ...], *others: Any) -> RawBatch:
    return RawBatch(epoch, batch, ids, labels, tuple(map(memoryview, frames)), *others)
