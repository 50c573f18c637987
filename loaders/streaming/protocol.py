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
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
from fastcrc.crc32 import iscsi as crc32c

from loaders.errors import DamagedError, WireError
from loaders.records.planner import Slice
from loaders.shared.options import as_whole

MAX_RECORDS = 65_536
"""Records of one request."""
MAX_PADDING = 2**20
"""Bytes of zeros of one request."""
MAX_SLICES = 1024
"""Slices of one request."""
MAX_REQUEST_BYTES = 32 * 2**10
"""Bytes of a request; a longer one closes the connection."""

_Ints = npt.NDArray[np.int64]
Buffer: TypeAlias = bytes | memoryview
WireFormat: TypeAlias = Literal["raw", "msgpack"]
"""How a batch travels: records as frames of their own, not copied, or all in one msgpack frame."""


class Shard(NamedTuple):
    """One shard of a daemon."""

    name: str
    records: int
    nbytes: int
    digest: str
    """Of its name and index: shards of one name and digest are replicas."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks for the catalog."""


@dataclass(frozen=True, slots=True)
class Health:
    """Asks for the daemon's counters."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Asks for zeros, which open a connection's TCP window."""

    sequence: int
    padding: int = 0
    """Bytes of zeros, at most MAX_PADDING, in a frame of their own."""


@dataclass(frozen=True, slots=True)
class Get:
    """Asks for one batch, or a part of one."""

    sequence: int
    """Chosen by the client, repeated in the answer."""
    fingerprint: str
    """Of the catalog by which the client planned."""
    epoch: int
    batch: int
    slices: tuple[Slice, ...]
    """`shard` is the place in this daemon's catalog."""
    wire: WireFormat = "raw"
    check: bool = False
    """Whether the daemon checks its own records first."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The shards of a daemon."""

    fingerprint: str
    """Changes with the shards' content."""
    shards: tuple[Shard, ...]
    """Sorted by name."""

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

    sequence: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The records in the frames that follow; arrays of shape (records,), in the order of the slices."""

    sequence: int
    epoch: int
    batch: int
    ids: _Ints
    labels: _Ints
    offsets: _Ints
    """Of each image in its frame, in bytes."""
    sizes: _Ints
    """Of each image in bytes."""
    checksums: _Ints
    """Of each record's payload as it was indexed, masked CRC-32C."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A request was changed on its way and cannot be read."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The daemon cannot answer a request."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A daemon's counters and state: names and numbers."""

    fields: Mapping[str, object]


Request: TypeAlias = Hello | Health | Warm | Get
Reply: TypeAlias = Catalog | Warmed | BatchHeader | Refusal | Damaged | HealthReport


_VERSION = 6
_MAX_FIELDS = 16
"""Of a request; it has fewer."""


def pack(message: Request | Reply) -> bytes:
    """Return the header frame of a message."""
    return _frame(_fields(message))


def pack_whole(header: BatchHeader, records: Sequence[Buffer]) -> bytes:
    """Return a batch as one msgpack frame with all its bytes in it, copied."""
    return _frame(_fields(header), list(records))


def pack_joined(header: BatchHeader, records: Sequence[Buffer]) -> tuple[bytes, bytes]:
    """Return a batch as two frames: its header with the length of every slice, and all its bytes, copied once."""
    _, *fields = _fields(header)
    lengths = np.fromiter(map(len, records), "<i8", len(records))
    return _frame(("joined", *fields, lengths.tobytes())), b"".join(records)


def _frame(fields: tuple[object, ...], *records: list[Buffer]) -> bytes:
    body = msgpack.packb((_VERSION, *fields))
    # TCP's checksum misses one damaged segment in 65,536; records have checksums of their own.
    data: bytes = msgpack.packb((crc32c(body), body, *records))
    return data


def _fields(message: Request | Reply) -> tuple[object, ...]:
    """Return the name of a message's kind, and its fields in their order."""
    if isinstance(message, Get):
        sequence, fingerprint, epoch, batch = message.sequence, message.fingerprint, message.epoch, message.batch
        slices = np.array(message.slices, "<i8").tobytes()
        return "get", sequence, fingerprint, epoch, batch, slices, message.wire, message.check
    if isinstance(message, BatchHeader):
        columns = np.concatenate((message.ids, message.labels, message.offsets, message.sizes, message.checksums))
        packed = columns.astype("<i8", copy=False).tobytes()
        return "batch", message.sequence, message.epoch, message.batch, packed
    kind = "report" if isinstance(message, HealthReport) else type(message).__name__.lower()
    return kind, *astuple(message)


def unpack_request(data: Buffer) -> Request:
    """Return a client's request, checked for form; raises WireError when it is malformed."""
    # No request has maps, nested lists or long lists, so that garbage costs little.
    kind, fields, _ = _unpack(data, is_request=True)
    match kind, fields:
        case "get", [sequence, fingerprint, epoch, batch, slices, wire, check]:
            if not isinstance(check, bool):
                raise WireError("get: expected whether to check the records")
            if wire not in ("raw", "msgpack"):
                raise WireError("get: expected raw or msgpack as the wire format")
            return Get(
                _count(sequence, "sequence"),
                _text(fingerprint, "fingerprint"),
                _count(epoch, "epoch"),
                _count(batch, "batch"),
                _slices(slices),
                wire,
                check,
            )
        case "warm", [sequence, padding]:
            nbytes = _count(padding, "padding")
            if nbytes > MAX_PADDING:
                raise WireError(f"warm: at most {MAX_PADDING} bytes of padding")
            return Warm(_count(sequence, "sequence"), nbytes)
        case "hello", []:
            return Hello()
        case "health", []:
            return Health()
    raise WireError(f"no request {kind[:20]!r} with {len(fields)} fields")


def _reply(kind: str, fields: list[object]) -> Reply:
    match kind, fields:
        case "batch", [_, _, _, _]:
            return _batch(fields)
        case "catalog", [fingerprint, shards]:
            if not isinstance(shards, list) or not shards:
                raise WireError("catalog: expected a list of shards")
            return Catalog(_text(fingerprint, "fingerprint"), tuple(_shard(value) for value in shards))
        case "warmed", [sequence]:
            return Warmed(_count(sequence, "sequence"))
        case "damaged", []:
            return Damaged()
        case "refusal", [sequence, reason]:
            return Refusal(_count(sequence, "sequence"), _text(reason, "reason"))
        case "report", [values]:
            if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
                raise WireError("report: expected names and numbers")
            return HealthReport(values)
    raise WireError(f"no reply {kind[:20]!r} with {len(fields)} fields")


def unpack_answer(frames: Sequence[Buffer]) -> tuple[Reply, list[memoryview]]:
    """Return an answer and the records that came with it, whichever their wire format.

    Records in frames of their own are views of them. Raises WireError when the first frame is malformed; the records
    are not checked.
    """
    if not frames:
        raise WireError("an answer without a frame")
    kind, fields, records = _unpack(frames[0])
    if kind == "joined" and len(fields) == 5 and len(frames) == 2:
        lengths = fields.pop()
        return _batch(fields), _split(memoryview(frames[1]), lengths)
    return _reply(kind, fields), [memoryview(record) for record in (*records, *frames[1:])]


def _split(joined: memoryview, lengths: object) -> list[memoryview]:
    """Return the parts of a frame, not copied."""
    if not isinstance(lengths, bytes) or len(lengths) % 8:
        raise WireError("joined: expected the slices' lengths as 64-bit numbers")
    each: list[int] = np.frombuffer(lengths, "<i8").tolist()
    if any(not 0 <= length <= len(joined) for length in each) or sum(each) != len(joined):
        raise WireError(f"joined: slices that are not the frame's {len(joined)} bytes together")
    ends = list(itertools.accumulate(each))
    return [joined[end - length : end] for end, length in zip(ends, each, strict=True)]


def _batch(fields: list[object]) -> BatchHeader:
    sequence, epoch, batch, columns = fields
    if not isinstance(columns, bytes) or len(columns) % 40:
        raise WireError("batch: expected five arrays of 64-bit numbers, of one length")
    arrays = np.frombuffer(columns, "<i8").astype(np.int64, copy=False).reshape(5, -1)
    return BatchHeader(_count(sequence, "sequence"), _count(epoch, "epoch"), _count(batch, "batch"), *arrays)


class _OneList:
    """Ends the unpacking of a message at its second list, as msgpack's list hook."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self, values: list[object]) -> list[object]:
        if self._seen:
            raise WireError("a request with a list in its list")
        self._seen = True
        return values


def _unpack(data: Buffer, *, is_request: bool = False) -> tuple[str, list[object], list[bytes]]:
    """Return the kind of a message, its fields, and the records in its frame."""
    checksum, body, found = (*_list(data, is_request), None, None, None)[:3]
    records = [] if found is None else found
    if not (isinstance(checksum, int) and isinstance(body, bytes) and isinstance(records, list)) or not all(
        isinstance(record, bytes) for record in records
    ):
        raise WireError(f"not a message of protocol version {_VERSION}")
    if crc32c(body) != checksum:
        raise DamagedError("its checksum does not match")
    message = _list(body, is_request)
    if len(message) < 2 or message[0] != _VERSION:
        raise WireError(f"not a message of protocol version {_VERSION}")
    return _text(message[1], "kind"), message[2:], records


def _list(data: Buffer, is_request: bool) -> list[object]:
    try:
        if is_request:
            limits = {"max_array_len": _MAX_FIELDS, "max_map_len": 0, "max_ext_len": 0}
            message = msgpack.unpackb(data, list_hook=_OneList(), **limits)
        else:
            message = msgpack.unpackb(data)
    # Deep nesting and keys that cannot be hashed end in these as well.
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"not msgpack: {error}") from error
    return message if isinstance(message, list) else []


def _count(value: object, name: str) -> int:
    count = as_whole(value)
    if count is None:
        raise WireError(f"{name}: expected a whole number from 0 to 2**63 - 1")
    return count


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{name}: expected text")
    return value


def _slices(value: object) -> tuple[Slice, ...]:
    # Numbers in one piece: a list of as many small lists costs a hundred times as much to unpack.
    if not isinstance(value, bytes) or not value or len(value) % 24 or len(value) > 24 * MAX_SLICES:
        raise WireError(f"get: expected 1 to {MAX_SLICES} slices of three 64-bit numbers each")
    numbers: list[int] = np.frombuffer(value, "<i8").tolist()
    if min(numbers) < 0:
        raise WireError("slice: expected shard, first record and number of records, none of them negative")
    return tuple(map(Slice, numbers[::3], numbers[1::3], numbers[2::3]))


def _shard(value: object) -> Shard:
    if not isinstance(value, list) or len(value) != 4:
        raise WireError("shard: expected name, number of records, bytes and digest")
    name, records, nbytes, digest = value
    return Shard(_text(name, "name"), _count(records, "records"), _count(nbytes, "nbytes"), _text(digest, "digest"))
