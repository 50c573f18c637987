"""The records of a batch as it came: where each lies."""

from __future__ import annotations

from typing import NamedTuple

from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES

__all__ = ["Record", "records_of"]


class Record(NamedTuple):
    """A whole TFRecord record."""

    content: memoryview
    file: int
    """Where its sample's file begins in it."""


def records_of(raw: RawBatch) -> list[Record | None]:
    """Return every sample's whole record, by the lengths that the records state; None where there is none around it.

    Nothing is copied or checked beyond that.
    """
    found: list[Record | None] = []
    at, current = 0, -1
    for number, offset, size in zip(raw.frame_of.tolist(), raw.offsets.tolist(), raw.sizes.tolist(), strict=True):
        if number != current:
            at, current = 0, number
        frame = raw.frames[number]
        end = at + HEADER_BYTES + int.from_bytes(frame[at : at + 8], "little") + FOOTER_BYTES
        whole = at + HEADER_BYTES <= offset and offset + size <= end - FOOTER_BYTES and end <= len(frame)
        found.append(Record(frame[at:end], offset - at) if whole else None)
        # Where one record ends wrongly, none after it can be found.
        at = end if whole else len(frame)
    return found
