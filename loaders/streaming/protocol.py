"""The protocol between client and daemon: msgpack headers, records as raw frames after them.

    client                                     daemon
    HELLO                                  ->
                                           <-  CATALOG (the shards)
    WARM (sequence number, padding)        ->
                                           <-  WARMED, and so many zeros
    GET (sequence number, slices)          ->
                                           <-  BATCH (where the records are), one frame per slice
                                           or  REFUSAL (a reason)
                                           or  DAMAGED (the request cannot be read)
    HEALTH                                 ->
                                           <-  REPORT (the daemon's counters)

Requests do not depend on one another, so a lost one is sent again. Each message is checked here before anything else
uses it; WireError says what is wrong with it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
from fastcrc.crc32 import iscsi as crc32c
from pydantic import Field, PlainValidator, Strict, TypeAdapter, ValidationError

from loaders.errors import DamagedError, WireError
from loaders.records.planner import Slice
from loaders.streaming.settings import WireFormat

MAX_RECORDS = 65_536
"""Records of one request."""
MAX_PADDING = 2**20
"""Bytes of zeros of one request."""
MAX_SLICES = 1024
"""Slices of one request."""
MAX_REQUEST_BYTES = 32 * 2**10
"""Bytes of a request; a longer one closes the connection."""

_VERSION = 7
_SLICE_BYTES = 24
_LENGTH, _ARRAY, _BYTES = struct.Struct(">BI"), 0xDD, 0xC6
"""How msgpack begins an array and bytes whose length takes 32 bits."""


def _read_ints(data: object) -> npt.NDArray[np.int64]:
    if not isinstance(data, bytes) or len(data) % 8:
        raise ValueError("expected 64-bit numbers")
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def _read_slices(data: object) -> tuple[Slice, ...]:
    # Numbers in one piece: a list of as many small lists costs a hundred times as much to unpack.
    if not isinstance(data, bytes) or not data or len(data) % _SLICE_BYTES or len(data) > _SLICE_BYTES * MAX_SLICES:
        raise ValueError(f"expected 1 to {MAX_SLICES} slices of three 64-bit numbers each")
    numbers: list[int] = np.frombuffer(data, "<i8").tolist()
    if min(numbers) < 0:
        raise ValueError("expected shard, first record and number of records, none of them negative")
    return tuple(map(Slice, numbers[::3], numbers[1::3], numbers[2::3]))


Buffer: TypeAlias = bytes | memoryview
_Ints: TypeAlias = Annotated[npt.NDArray[np.int64], PlainValidator(_read_ints)]
_Slices: TypeAlias = Annotated[tuple[Slice, ...], PlainValidator(_read_slices)]
_Count: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
_Padding: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=MAX_PADDING)]
_Text: TypeAlias = Annotated[str, Strict()]
_Flag: TypeAlias = Annotated[bool, Strict()]


@dataclass(frozen=True, slots=True)
class ServedShard:
    """One shard of a daemon."""

    name: _Text
    records: _Count
    nbytes: _Count
    digest: _Text
    """Of its name and index: equal for equal records."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks for the catalog."""

    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Health:
    """Asks for the daemon's counters."""

    kind: Literal["health"] = "health"


@dataclass(frozen=True, slots=True)
class Warm:
    """Asks for zeros, which open a connection's TCP window."""

    sequence: _Count
    padding: _Padding = 0
    """Bytes of zeros, at most MAX_PADDING, in a frame of their own."""
    kind: Literal["warm"] = "warm"


@dataclass(frozen=True, slots=True)
class Get:
    """Asks for one batch, or a part of one."""

    sequence: _Count
    """Chosen by the client, repeated in the answer."""
    fingerprint: _Text
    """Of the catalog by which the client planned."""
    epoch: _Count
    batch: _Count
    slices: _Slices
    """`shard` is the place in this daemon's catalog."""
    wire: WireFormat = "raw"
    check: _Flag = False
    """Whether the daemon checks its own records first."""
    kind: Literal["get"] = "get"


@dataclass(frozen=True, slots=True)
class ShardCatalog:
    """The shards of a daemon."""

    fingerprint: _Text
    """Changes with the shards' content."""
    shards: Annotated[tuple[ServedShard, ...], Field(min_length=1)]
    """Sorted by name."""
    kind: Literal["catalog"] = "catalog"

    @property
    def shard_records(self) -> tuple[int, ...]:
        """Number of records of every shard."""
        return tuple(shard.records for shard in self.shards)

    @property
    def samples(self) -> int:
        """Number of records in all shards."""
        return sum(self.shard_records)


@dataclass(frozen=True, slots=True)
class Warmed:
    """Comes before the zeros of a Warm."""

    sequence: _Count
    kind: Literal["warmed"] = "warmed"


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The records in the frames that follow; arrays of shape (records,), in the order of the slices."""

    sequence: _Count
    epoch: _Count
    batch: _Count
    ids: _Ints
    labels: _Ints
    offsets: _Ints
    """Of each image in its frame, in bytes."""
    sizes: _Ints
    """Of each image in bytes."""
    checksums: _Ints
    """Of each record's payload as it was indexed, masked CRC-32C."""
    kind: Literal["batch"] = "batch"

    def __post_init__(self) -> None:
        if len({len(each) for each in (self.ids, self.labels, self.offsets, self.sizes, self.checksums)}) != 1:
            raise ValueError("expected five arrays of one length")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A request was changed on its way and cannot be read."""

    kind: Literal["damaged"] = "damaged"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The daemon cannot answer a request."""

    sequence: _Count
    reason: _Text
    kind: Literal["refusal"] = "refusal"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A daemon's counters and state: names and numbers."""

    fields: dict[str, Any]
    kind: Literal["report"] = "report"


Request: TypeAlias = Hello | Health | Warm | Get
Reply: TypeAlias = ShardCatalog | Warmed | BatchHeader | Refusal | Damaged | HealthReport
_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLIES: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def pack(message: Request | Reply) -> bytes:
    """Return the header frame of a message."""
    return _frame(_fields(message))


def pack_whole(header: BatchHeader, records: Sequence[Buffer]) -> memoryview:
    """Return a batch as one msgpack frame with all its bytes in it.

    They are copied once and without the interpreter's lock, so that threads serialise in parallel. msgpack's packer
    copies them twice and keeps the lock.
    """
    # The header frame is an array of two; here the records follow as its third.
    parts: list[Buffer] = [b"\x93" + _frame(_fields(header))[1:] + _LENGTH.pack(_ARRAY, len(records))]
    for record in records:
        parts += _LENGTH.pack(_BYTES, len(record)), record
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts]).data


def pack_joined(header: BatchHeader, records: Sequence[Buffer]) -> tuple[bytes, bytes]:
    """Return a batch as two frames: its header with the length of every slice, and all its bytes, copied once."""
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return _frame(_fields(header) | {"lengths": lengths}), b"".join(records)


def _frame(message: dict[str, object]) -> bytes:
    body = msgpack.packb((_VERSION, message), default=_pack_array)
    # TCP's checksum misses one damaged segment in 65,536; records have checksums of their own.
    data: bytes = msgpack.packb((crc32c(body), body))
    return data


def _pack_array(array: npt.NDArray[np.int64]) -> bytes:
    return array.astype("<i8", copy=False).tobytes()


def _fields(message: Request | Reply) -> dict[str, object]:
    found = {each: getattr(message, each) for each in _NAMES[type(message)]}
    if isinstance(message, Get):
        found["slices"] = np.array(message.slices, np.int64)
    elif isinstance(message, ShardCatalog):
        found["shards"] = [{each: getattr(shard, each) for each in _NAMES[ServedShard]} for shard in message.shards]
    return found


_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind))
    for kind in (
        *(ServedShard, Hello, Health, Warm, Get),
        *(ShardCatalog, Warmed, BatchHeader, Refusal, Damaged, HealthReport),
    )
}


def unpack_request(data: Buffer) -> Request:
    """Return a client's request, checked for form; raises WireError when it is malformed."""
    request: Request = _validate(_REQUESTS, _unpack(data)[0])
    return request


def unpack_answer(frames: Sequence[Buffer]) -> tuple[Reply, list[memoryview]]:
    """Return an answer and the records that came with it, whichever their wire format.

    Records in frames of their own are views of them. Raises WireError when the first frame is malformed; the records
    are not checked.
    """
    if not frames:
        raise WireError("an answer without a frame")
    message, records = _unpack(frames[0])
    reply: Reply = _validate(_REPLIES, message)
    if isinstance(message, dict) and "lengths" in message and len(frames) == 2:
        return reply, _split(memoryview(frames[1]), message["lengths"])
    return reply, [memoryview(record) for record in (*records, *frames[1:])]


def _split(joined: memoryview, lengths: object) -> list[memoryview]:
    """Return the parts of a frame, not copied."""
    try:
        each: list[int] = _read_ints(lengths).tolist()
    except ValueError as error:
        raise WireError(f"lengths: {error}") from error
    if any(not 0 <= length <= len(joined) for length in each) or sum(each) != len(joined):
        raise WireError(f"lengths: slices that are not the frame's {len(joined)} bytes together")
    ends = list(itertools.accumulate(each))
    return [joined[end - length : end] for end, length in zip(ends, each, strict=True)]


def _validate(adapter: TypeAdapter[Any], message: object) -> Any:
    try:
        return adapter.validate_python(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise WireError(f"{'.'.join(map(str, first['loc'])) or 'message'}: {first['msg']}") from error


def _unpack(data: Buffer) -> tuple[object, list[bytes]]:
    """Return the message in a header frame, and the records in the frame."""
    outer = _unpack_list(data)
    if len(outer) not in (2, 3) or not isinstance(outer[0], int) or not isinstance(outer[1], bytes):
        raise WireError(f"not a message of protocol version {_VERSION}")
    records = outer[2] if len(outer) == 3 else []
    if not isinstance(records, list) or not all(isinstance(record, bytes) for record in records):
        raise WireError(f"not a message of protocol version {_VERSION}")
    if crc32c(outer[1]) != outer[0]:
        raise DamagedError("its checksum does not match")
    body = _unpack_list(outer[1])
    if len(body) != 2 or body[0] != _VERSION:
        raise WireError(f"not a message of protocol version {_VERSION}")
    return body[1], records


def _unpack_list(data: Buffer) -> list[object]:
    try:
        message = msgpack.unpackb(data)
    # Deep nesting and keys that cannot be hashed end in these as well.
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"not msgpack: {error}") from error
    return message if isinstance(message, list) else []
