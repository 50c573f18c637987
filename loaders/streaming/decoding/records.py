"""The records of a batch as it came: where each lies, and their checksums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loaders.errors import SampleError
from loaders.streaming.errors import ShardError
from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record, intact_records, stated_checksum

__all__ = ["Record", "check_records", "records_of"]


class Record(NamedTuple):
    """A whole TFRecord record."""

    content: memoryview
    file: int
    """Where its sample's file begins in it."""


def check_records(raw: RawBatch, *, payloads: bool = True) -> None:
    """Check that every record of a batch is whole and the one that was indexed.

    Without `payloads` the checksum that a record states is compared to the index, and its payload is not read.

    Raises SampleError naming the first that is damaged or another one.
    """
    expected, at, whole = raw.checksums.tolist(), 0, 0
    ends: dict[int, memoryview] = {}
    for frame, count in zip(raw.frames, np.bincount(raw.frame_of, minlength=len(raw.frames)).tolist(), strict=True):
        whole += intact_records(frame, expected[at : at + count], payloads=payloads)
        at += count
        ends[at - 1] = frame
    if whole == len(raw.ids):
        return
    for place, (sample_id, record) in enumerate(zip(raw.ids.tolist(), records_of(raw), strict=True)):
        where = f"sample {sample_id} as streamed"
        if payloads:
            if record is None:
                raise SampleError(f"{where}: its record does not fit its frame; convert the data again")
            try:
                check_record(record.content, where)
            except ShardError as error:
                raise SampleError(str(error)) from error
        # That a record does not fit its frame, its decoder says; but the last one of a frame ends with it in any case.
        content = record.content if record is not None else ends.get(place)
        if content is not None and stated_checksum(content) != expected[place]:
            raise SampleError(
                f"{where}: its record is not the one that was indexed: the shards changed since; restore them, or "
                "index or convert the data again and restart the daemon"
            )


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
