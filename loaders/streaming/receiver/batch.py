"""A batch that arrives in parts, which are checked and joined; the order in which batches are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.errors import WireError
from loaders.records.planner import BatchPlan, Slice
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.tfrecord import count_intact
from loaders.streaming.protocol import BatchHeader

_Ints: TypeAlias = npt.NDArray[np.int64]
_COLUMNS: Final = ("ids", "labels", "offsets", "sizes", "checksums")


def _join(pieces: Sequence[RawBatch]) -> RawBatch:
    """Return the records of several planned batches as one."""
    names = ("ids", "labels", "frame_of", "offsets", "sizes", "checksums")
    columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    counts = [len(piece.frames) for piece in pieces]
    columns["frame_of"] += np.repeat(np.cumsum(counts) - counts, [len(piece) for piece in pieces])
    frames = tuple(frame for piece in pieces for frame in piece.frames)
    numbers = tuple(piece.batch for piece in pieces)
    return RawBatch(pieces[0].epoch, pieces[0].batch, frames=frames, pieces=numbers, **columns)


@dataclass(slots=True)
class BatchAssembler:
    """Joins a batch from parts, some of which have arrived."""

    plan: BatchPlan
    parts: tuple[Sequence[int], ...]
    """The slices of each part, by their places in the plan, in ascending order."""
    _come: dict[int, tuple[BatchHeader, list[memoryview]]] = field(default_factory=dict)

    def slices(self, index: int) -> tuple[Slice, ...]:
        """Return the slices of one part."""
        if len(self.parts) == 1:
            return self.plan.slices
        return tuple(self.plan.slices[place] for place in self.parts[index])

    def add(self, index: int, header: BatchHeader, frames: list[memoryview]) -> None:
        """Add the answer for one part; raise WireError when it does not match the request."""
        _check(self.plan, self.slices(index), header, frames)
        self._come[index] = header, frames

    def is_intact(self, index: int, *, payloads: bool) -> bool:
        """Return whether the records of a part are those that were indexed, by their checksums.

        Without `payloads` the checksum that each record states is compared, and its payload is not read.
        """
        (header, frames), at = self._come[index], 0
        checksums = header.checksums.tolist()
        for piece, frame in zip(self.slices(index), frames, strict=True):
            expected = checksums[at : at + piece.records]
            if count_intact(frame, expected, payloads=payloads) < piece.records:
                return False
            at += piece.records
        return True

    def drop(self, index: int) -> None:
        """Drop a part, which is requested again."""
        del self._come[index]

    @property
    def complete(self) -> bool:
        """Whether every part has arrived."""
        return len(self._come) == len(self.parts)

    def batch(self) -> RawBatch:
        """Join the parts in the order of the plan, whichever came first."""
        parts = [self._come[index] for index in range(len(self.parts))]
        headers, frames = [header for header, _ in parts], [frame for _, some in parts for frame in some]
        if len(headers) == 1:
            (header,) = headers
            columns = [getattr(header, name) for name in _COLUMNS]
        else:
            columns = [np.concatenate([getattr(header, name) for header in headers]) for name in _COLUMNS]
        records = [piece.records for piece in self.plan.slices]
        places = [place for part in self.parts for place in part] if len(self.parts) > 1 else []
        if places != sorted(places):  # of several daemons
            came = np.repeat(places, [records[place] for place in places])
            order = np.argsort(came, kind="stable")
            columns = [column[order] for column in columns]
            frames = [frame for _, frame in sorted(zip(places, frames, strict=True), key=lambda pair: pair[0])]
        ids, labels, *places_in_frames = columns
        frame_of = np.repeat(np.arange(len(frames)), records)
        return RawBatch(self.plan.epoch, self.plan.batch, ids, labels, tuple(frames), frame_of, *places_in_frames)


def _check(plan: BatchPlan, slices: tuple[Slice, ...], header: BatchHeader, frames: list[memoryview]) -> None:
    if len(frames) != len(slices):
        raise WireError(f"{len(frames)} frames for {len(slices)} slices")
    if (header.epoch, header.batch) != (plan.epoch, plan.batch):
        raise WireError(f"it says batch {header.batch} of epoch {header.epoch}")
    records = [piece.records for piece in slices]
    if len(header.ids) != sum(records):
        raise WireError(f"{len(header.ids)} records, more or fewer than were asked for")
    ends = np.repeat([len(frame) for frame in frames], records)
    # As unsigned numbers, negative ones are too large; compared without a sum of two off the wire, which could wrap.
    offsets, sizes = header.offsets.view(np.uint64), header.sizes.view(np.uint64)
    ends = ends.astype(np.uint64)
    if (offsets > ends).any() or (sizes > ends - offsets).any():
        raise WireError("an image lies outside of its frame")


class ArrivalOrder:
    """Delivers batches as they arrive."""

    def __init__(self, pieces: int = 1) -> None:
        """Join so many planned batches into one, the first that arrive; only the last one has fewer."""
        self._pieces = pieces
        self._expected = 0
        self._come: deque[RawBatch] = deque()

    def expect(self, plan: BatchPlan) -> None:
        """Expect a batch."""
        self._expected += 1

    def add(self, batch: RawBatch) -> None:
        """Add a complete batch."""
        come = self._come
        come.append(batch)
        if len(come) > 1 and len(come[-2]) < len(batch):  # the last piece of an epoch is short, and stays the last
            come[-2], come[-1] = come[-1], come[-2]

    def take(self) -> RawBatch | None:
        """Return the next batch, None while it has not come."""
        come = self._come
        is_whole = len(come) >= self._pieces and len(come[self._pieces - 1]) == len(come[0])
        if not come or (not is_whole and len(come) < self._expected):
            return None
        taken = [come.popleft() for _ in range(min(self._pieces, len(come)))]
        self._expected -= len(taken)
        return taken[0] if len(taken) == 1 else _join(taken)


class PlanOrder:
    """Delivers batches in the order of the plan."""

    def __init__(self) -> None:
        self._expected: deque[tuple[int, int]] = deque()
        self._come: dict[tuple[int, int], RawBatch] = {}

    def expect(self, plan: BatchPlan) -> None:
        """Expect a batch after those before it."""
        self._expected.append((plan.epoch, plan.batch))

    def add(self, batch: RawBatch) -> None:
        """Add a complete batch."""
        self._come[batch.epoch, batch.batch] = batch

    def take(self) -> RawBatch | None:
        """Return the next batch, None while it has not come."""
        if not self._expected or self._expected[0] not in self._come:
            return None
        return self._come.pop(self._expected.popleft())
