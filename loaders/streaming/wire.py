"""The protocol between client and daemon: msgpack headers, records as raw frames after them.

    client                                     daemon
    HELLO                                  ->
                                           <-  CATALOG (what is served), padding where it was asked for
    GET (sequence number, slices)          ->
                                           <-  BATCH (what is in the frames), one frame per slice
                                           or  REFUSAL (why not)

Requests do not depend on one another, so one that was lost is sent again. What arrives is checked here before
anything else touches it; WireError says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from loaders.streaming.errors import WireError
from loaders.streaming.planner import Slice

__all__ = [
    "MAX_PADDING",
    "MAX_RECORDS",
    "MAX_REQUEST_BYTES",
    "BatchHeader",
    "Catalog",
    "Get",
    "Hello",
    "Refusal",
    "pack",
    "unpack_reply",
    "unpack_request",
]

_VERSION = 1
MAX_RECORDS = 65_536
"""Most records that one request may ask for."""
MAX_PADDING = 2**20
"""Most bytes of zeros that one greeting may ask for."""
MAX_REQUEST_BYTES = 4 * 2**20
"""Most bytes of a request; a longer one closes the connection."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks what is served."""

    padding: int = 0
    """Bytes of zeros, at most MAX_PADDING, that shall follow the answer in a frame of their own."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a daemon serves."""

    fingerprint: str
    """Changes with the shards' content."""
    shard_records: tuple[int, ...]
    """Number of records of every shard."""

    @property
    def samples(self) -> int:
        """Number of records in all shards."""
        return sum(self.shard_records)


@dataclass(frozen=True, slots=True)
class Get:
    """Asks for one batch."""

    sequence: int
    """Chosen by the client, repeated in the answer."""
    fingerprint: str
    """Of the catalog by which the client planned."""
    epoch: int
    batch: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What is in the frames that follow; arrays of shape (records,), in the order of the slices."""

    sequence: int
    epoch: int
    batch: int
    ids: _Ints
    labels: _Ints
    offsets: _Ints
    """Of each image in its frame, in bytes."""
    sizes: _Ints
    """Of each image in bytes."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The daemon cannot answer a request."""

    sequence: int
    reason: str


def pack(message: Hello | Catalog | Get | BatchHeader | Refusal) -> bytes:
    """Return the header frame of a message."""
    match message:
        case Hello():
            fields: tuple[Any, ...] = ("hello", message.padding)
        case Catalog():
            fields = ("catalog", message.fingerprint, message.shard_records)
        case Get():
            fields = (
                "get", message.sequence, message.fingerprint, message.epoch, message.batch, message.slices
            )  # fmt: skip
        case BatchHeader():
            arrays = (message.ids, message.labels, message.offsets, message.sizes)
            packed = (array.astype("<i8", copy=False).tobytes() for array in arrays)
            fields = ("batch", message.sequence, message.epoch, message.batch, *packed)
        case Refusal():
            fields = ("refusal", message.sequence, message.reason)
    data: bytes = msgpack.packb((_VERSION, *fields))
    return data


def unpack_request(data: bytes | memoryview) -> Hello | Get:
    """Return what a client asks for, checked for form; WireError when it is malformed."""
    kind, fields = _unpack(data)
    if kind == "hello" and len(fields) == 1:
        if _count(fields[0], "padding") > MAX_PADDING:
            raise WireError(f"hello: at most {MAX_PADDING} bytes of padding")
        return Hello(fields[0])
    if kind == "get" and len(fields) == 5:
        sequence, fingerprint, epoch, batch, slices = fields
        if not isinstance(slices, list) or not 0 < len(slices) <= MAX_RECORDS:
            raise WireError(f"get: expected a list of 1 to {MAX_RECORDS} slices")
        return Get(
            _count(sequence, "sequence"),
            _text(fingerprint, "fingerprint"),
            _count(epoch, "epoch"),
            _count(batch, "batch"),
            tuple(_slice(part) for part in slices),
        )
    raise WireError(f"no request {kind!r} with {len(fields)} fields")


def unpack_reply(data: bytes | memoryview) -> Catalog | BatchHeader | Refusal:
    """Return what a daemon answers, checked for form; WireError when it is malformed."""
    kind, fields = _unpack(data)
    if kind == "catalog" and len(fields) == 2:
        fingerprint, counts = fields
        if not isinstance(counts, list) or not counts:
            raise WireError("catalog: expected a list of record counts")
        return Catalog(_text(fingerprint, "fingerprint"), tuple(_count(value, "shard_records") for value in counts))
    if kind == "batch" and len(fields) == 7:
        sequence, epoch, batch, *arrays = fields
        ids, labels, offsets, sizes = (_ints(array) for array in arrays)
        if not len(ids) == len(labels) == len(offsets) == len(sizes):
            raise WireError("batch: ids, labels, offsets and sizes differ in length")
        return BatchHeader(
            _count(sequence, "sequence"),
            _count(epoch, "epoch"),
            _count(batch, "batch"),
            ids,
            labels,
            offsets,
            sizes,
        )
    if kind == "refusal" and len(fields) == 2:
        return Refusal(_count(fields[0], "sequence"), _text(fields[1], "reason"))
    raise WireError(f"no reply {kind!r} with {len(fields)} fields")


def _unpack(data: bytes | memoryview) -> tuple[str, list[Any]]:
    try:
        message = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"not msgpack: {error}") from error
    if not isinstance(message, list) or len(message) < 2 or message[0] != _VERSION:
        raise WireError(f"not a message of protocol version {_VERSION}")
    return _text(message[1], "kind"), message[2:]


def _count(value: object, name: str) -> int:
    # msgpack's True is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise WireError(f"{name}: expected a whole number from 0 to 2**63 - 1")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{name}: expected text")
    return value


def _slice(value: object) -> Slice:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != 3:
        raise WireError("slice: expected shard, first record and number of records")
    return Slice(_count(value[0], "shard"), _count(value[1], "first"), _count(value[2], "records"))


def _ints(value: object) -> _Ints:
    if not isinstance(value, bytes) or len(value) % 8:
        raise WireError("batch: expected arrays of 64-bit numbers")
    return np.frombuffer(value, "<i8").astype(np.int64, copy=False)
