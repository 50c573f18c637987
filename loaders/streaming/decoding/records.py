"""The records of a batch as it came: their checksums, and the name of a sample that is at fault."""

from __future__ import annotations

from collections.abc import Iterator

from loaders.errors import LoaderError, SampleError
from loaders.image import decode
from loaders.pipeline import UndecodableError
from loaders.streaming.errors import ShardError
from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.shards.example import ExampleView
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record, intact_records

__all__ = ["check_records", "explain_failure"]

_PATHS = ("image/path", "image/filename", "volume/path", "audio/path")


def check_records(raw: RawBatch) -> None:
    """Check both checksums of every record of a batch; raise SampleError naming the first that is damaged."""
    if sum(intact_records(frame) for frame in raw.frames) == len(raw.ids):
        return
    for sample_id, record in zip(raw.ids.tolist(), _records(raw), strict=True):
        try:
            check_record(record, f"sample {sample_id} as streamed")
        except ShardError as error:
            raise SampleError(str(error)) from error


def explain_failure(batches: list[RawBatch], message: str) -> LoaderError:
    """Return the error of the sample because of which decoding failed, or the decoder's own message."""
    for raw in batches:
        for index, (sample_id, image) in enumerate(zip(raw.ids.tolist(), raw.images(), strict=True)):
            try:
                decode(image)
            except UndecodableError as error:
                return SampleError(f"sample {sample_id} ({_path(raw, index)}) cannot be decoded: {error}")
    return LoaderError(f"decoding failed at samples {[raw.ids.tolist() for raw in batches]}: {message}")


def _records(raw: RawBatch) -> Iterator[memoryview]:
    """Yield the records of all frames in order, by the lengths that they state."""
    for frame in raw.frames:
        at = 0
        while at < len(frame):
            payload = int.from_bytes(frame[at : at + 8], "little")
            end = at + HEADER_BYTES + payload + FOOTER_BYTES
            yield frame[at:end]
            at = end


def _path(raw: RawBatch, index: int) -> str:
    """Return the path that is stored with a sample, or why there is none."""
    try:
        record = list(_records(raw))[index]
        example = ExampleView(check_record(record, "its record"))
        path = next((example[name] for name in _PATHS if name in example), [])
    except (ShardError, IndexError) as error:
        return f"damaged: {error}"
    return path[0].decode(errors="replace") if path and isinstance(path[0], bytes) else "no path is stored with it"
