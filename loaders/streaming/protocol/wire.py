"""The protocol between client and daemon: msgpack headers, records as raw frames after them.

    client                                     daemon
    HELLO                                  ->
                                           <-  CATALOG (what is served)
    WARM (sequence number, padding)        ->
                                           <-  WARMED, and so many zeros
    GET (sequence number, slices)          ->
                                           <-  BATCH (what is in the frames), one frame per slice
                                           or  REFUSAL (why not)
                                           or  DAMAGED (the request cannot be read)
    HEALTH                                 ->
                                           <-  REPORT (what the daemon counted)

Requests do not depend on one another, so one that was lost is sent again. What arrives is checked here before
anything else touches it; WireError says what is wrong with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
from crc32c import crc32c

from loaders.streaming.errors import DamagedError, WireError
from loaders.streaming.planner import Slice
from loaders.streaming.protocol.messages import (
    MAX_PADDING,
    MAX_SLICES,
    BatchHeader,
    Buffer,
    Catalog,
    Damaged,
    Get,
    Health,
    Hello,
    Refusal,
    Reply,
    Report,
    Request,
    Shard,
    Warm,
    Warmed,
)

__all__ = ["pack", "pack_joined", "pack_whole", "unpack_answer", "unpack_reply", "unpack_request"]

_VERSION = 6
_MOST_FIELDS = 16
"""Of a request; it has fewer."""


def pack(message: Request | Reply) -> bytes:
    """Return the header frame of a message."""
    return _packed(_fields(message))


def pack_whole(header: BatchHeader, records: Sequence[Buffer]) -> bytes:
    """Return a batch as one msgpack frame with all its bytes in it, copied."""
    return _packed(_fields(header), list(records))


def pack_joined(header: BatchHeader, records: Sequence[Buffer]) -> tuple[bytes, bytes]:
    """Return a batch as two frames: its header with the length of every slice, and all its bytes, copied once."""
    _, *fields = _fields(header)
    lengths = np.fromiter(map(len, records), "<i8", len(records))
    return _packed(("joined", *fields, lengths.tobytes())), b"".join(records)


def _packed(fields: tuple[Any, ...], *records: list[Buffer]) -> bytes:
    body = msgpack.packb((_VERSION, *fields))
    # TCP's checksum misses one damaged segment in 65,536; records have checksums of their own.
    data: bytes = msgpack.packb((crc32c(body), body, *records))
    return data


def _fields(message: Request | Reply) -> tuple[Any, ...]:  # noqa: PLR0911 - one a kind of message
    match message:
        case Get():
            return (
                "get",
                message.sequence,
                message.fingerprint,
                message.epoch,
                message.batch,
                np.array(message.slices, "<i8").tobytes(),
                message.wire,
                message.check,
            )
        case BatchHeader():
            columns = np.concatenate((message.ids, message.labels, message.offsets, message.sizes, message.checksums))
            return (
                "batch",
                message.sequence,
                message.epoch,
                message.batch,
                columns.astype("<i8", copy=False).tobytes(),
            )
        case Hello():
            return ("hello",)
        case Health():
            return ("health",)
        case Warm():
            return ("warm", message.sequence, message.padding)
        case Warmed():
            return ("warmed", message.sequence)
        case Catalog():
            return ("catalog", message.fingerprint, message.shards)
        case Damaged():
            return ("damaged",)
        case Refusal():
            return ("refusal", message.sequence, message.reason)
        case Report():
            return ("report", message.fields)


def unpack_request(data: Buffer) -> Request:
    """Return what a client asks for, checked for form; WireError when it is malformed."""
    # No request has maps, lists in its list, or a long one: what is not one is to cost little.
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
            if _count(padding, "padding") > MAX_PADDING:
                raise WireError(f"warm: at most {MAX_PADDING} bytes of padding")
            return Warm(_count(sequence, "sequence"), padding)
        case "hello", []:
            return Hello()
        case "health", []:
            return Health()
    raise WireError(f"no request {kind[:20]!r} with {len(fields)} fields")


def unpack_reply(data: Buffer) -> Reply:
    """Return what a daemon answers, checked for form; WireError when it is malformed."""
    kind, fields, _ = _unpack(data)
    return _reply(kind, fields)


def _reply(kind: str, fields: list[Any]) -> Reply:
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
            return Report(values)
    raise WireError(f"no reply {kind[:20]!r} with {len(fields)} fields")


def unpack_answer(frames: Sequence[Buffer]) -> tuple[Reply, list[memoryview]]:
    """Return an answer and the records that came with it, whichever their wire format.

    Records in frames of their own are views of them. Raises WireError when the first frame is malformed; what the
    records hold is not looked at.
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


def _batch(fields: list[Any]) -> BatchHeader:
    sequence, epoch, batch, columns = fields
    if not isinstance(columns, bytes) or len(columns) % 40:
        raise WireError("batch: expected five arrays of 64-bit numbers, of one length")
    arrays = np.frombuffer(columns, "<i8").astype(np.int64, copy=False).reshape(5, -1)
    return BatchHeader(_count(sequence, "sequence"), _count(epoch, "epoch"), _count(batch, "batch"), *arrays)


class _OneList:
    """Ends the unpacking of a message at its second list; the first is the inner one of two."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self, values: list[Any]) -> list[Any]:
        if self._seen:
            raise WireError("a request with a list in its list")
        self._seen = True
        return values


def _unpack(data: Buffer, *, is_request: bool = False) -> tuple[str, list[Any], list[bytes]]:
    """Return the kind of a message, its fields, and the records in its frame."""
    checksum, body, records = (*_list(data, is_request), None, None, None)[:3]
    records = [] if records is None else records
    is_whole = isinstance(checksum, int) and isinstance(body, bytes) and isinstance(records, list)
    if not is_whole or not all(isinstance(record, bytes) for record in records):
        raise WireError(f"not a message of protocol version {_VERSION}")
    if crc32c(body) != checksum:
        raise DamagedError("its checksum does not match")
    message = _list(body, is_request)
    if len(message) < 2 or message[0] != _VERSION:
        raise WireError(f"not a message of protocol version {_VERSION}")
    return _text(message[1], "kind"), message[2:], records


def _list(data: Buffer, is_request: bool) -> list[Any]:
    limits: dict[str, Any] = {}
    if is_request:
        limits = {"max_array_len": _MOST_FIELDS, "max_map_len": 0, "max_ext_len": 0, "list_hook": _OneList()}
    try:
        message = msgpack.unpackb(data, **limits)
    # What nests too deeply or has a key that cannot be one ends in these as well.
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"not msgpack: {error}") from error
    return message if isinstance(message, list) else []


def _count(value: object, name: str) -> int:
    # msgpack's True is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise WireError(f"{name}: expected a whole number from 0 to 2**63 - 1")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{name}: expected text")
    return value


def _slices(value: object) -> tuple[Slice, ...]:
    # Numbers in one piece: a list of as many small lists costs a hundred times as much to unpack.
    if not isinstance(value, bytes) or not value or len(value) % 24 or len(value) > 24 * MAX_SLICES:
        raise WireError(f"get: expected 1 to {MAX_SLICES} slices of three 64-bit numbers each")
    numbers = np.frombuffer(value, "<i8")
    if numbers.min() < 0:
        raise WireError("slice: expected shard, first record and number of records, none of them negative")
    return tuple(map(Slice._make, numbers.reshape(-1, 3).tolist()))


def _shard(value: object) -> Shard:
    if not isinstance(value, list) or len(value) != 4:
        raise WireError("shard: expected name, number of records, bytes and digest")
    name, records, nbytes, digest = value
    return Shard(_text(name, "name"), _count(records, "records"), _count(nbytes, "nbytes"), _text(digest, "digest"))
