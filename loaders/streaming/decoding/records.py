"""The records of a batch as it came: where each lies, and their checksums."""

from __future__ import annotations

from typing import NamedTuple

from loaders.errors import SampleError
from loaders.streaming.errors import ShardError
from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record, intact_records

__all__ = ["Record", "check_records", "records_of"]


class Record(NamedTuple):
    """A whole TFRecord record."""

    content: memoryview
    file: int
    """Where its sample's file begins in it."""


def check_records(raw: RawBatch) -> None:
    """Check both checksums of every record of a batch; raise SampleError naming the first that is damaged."""
    if sum(intact_records(frame) for frame in raw.frames) == len(raw.ids):
        return
    for sample_id, record in zip(raw.ids.tolist(), records_of(raw), strict=True):
        where = f"sample {sample_id} as streamed"
        if record is None:
            raise SampleError(f"{where}: its record does not fit its frame; convert the data again")
        try:
            check_record(record.content, where)
        except ShardError as error:
            raise SampleError(str(error)) from error


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
