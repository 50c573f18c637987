"""`tf.train.Example` messages: the few protobuf rules that they need, written and read.

Schema: tensorflow/core/example/{example,feature}.proto. Encoding: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from loaders.errors import ShardError

Feature = list[bytes] | list[int] | list[float]
"""Values of one feature: a bytes, int64 or float list."""

MAX_EXAMPLE_BYTES = 2**31 - 1
"""The largest message that protobuf reads."""

_Bytes = bytes | bytearray | memoryview

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def _varint(value: int) -> bytes:
    """Return an int64 or a length as base-128 bytes; a negative number is its two's complement of 64 bits."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _open(field: int, size: int) -> bytes:
    """Return what stands before the content of a length-delimited field."""
    return _varint(field << 3 | _LENGTH) + _varint(size)


def _message(field: int, content: bytes) -> bytes:
    return _open(field, len(content)) + content


def _values(name: str, values: Feature) -> bytes:
    """Return a Feature message; an empty list has no type on the wire either."""
    if not values:
        return b""
    first = values[0]
    try:
        if isinstance(first, bytes):
            return _message(_BYTES_LIST, b"".join(_message(1, value) for value in values))  # type: ignore[arg-type]
        if isinstance(first, int):
            if not all(-(2**63) <= value < 2**63 for value in values):  # type: ignore[operator]
                raise ShardError(f"tf.train.Example: feature {name!r} has a number beyond 64 bits")
            return _message(_INT64_LIST, _message(1, b"".join(_varint(value) for value in values)))  # type: ignore[arg-type]
        return _message(_FLOAT_LIST, _message(1, struct.pack(f"<{len(values)}f", *values)))
    except (TypeError, struct.error, OverflowError) as error:
        raise ShardError(f"tf.train.Example: feature {name!r} has values of more than one type: {error}") from error


def _entry(name: str, values: Feature) -> bytes:
    return _message(1, _message(1, name.encode()) + _message(2, _values(name, values)))


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return a serialised Example with the features in the order given; float values are rounded to 32 bits.

    Raises ShardError when a feature mixes types.
    """
    return _message(1, b"".join(_entry(name, values) for name, values in features.items()))


def encode_head(features: Mapping[str, Feature], payload_name: str, payload_size: int) -> bytes:
    """Return a serialised Example up to where its last feature's one value of so many bytes starts.

    So the message is the head and then the payload, which need not be copied into it.

    Raises ShardError when a feature mixes types or the message would be larger than protobuf reads.
    """
    entries = b"".join(_entry(name, values) for name, values in features.items())
    inner = _open(1, payload_size)
    for field in (_BYTES_LIST, 2):
        inner = _open(field, len(inner) + payload_size) + inner
    inner = _message(1, payload_name.encode()) + inner
    inner = _open(1, len(inner) + payload_size) + inner
    head = _open(1, len(entries) + len(inner) + payload_size) + entries + inner
    if len(head) + payload_size > MAX_EXAMPLE_BYTES:
        raise ShardError(
            f"tf.train.Example: {len(head) + payload_size} bytes in one sample, at most {MAX_EXAMPLE_BYTES}; split it"
        )
    return head


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise ShardError(f"tf.train.Example: no whole number at byte {at} of {len(data)}")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview, int]]:
    """Yield number, value and the value's place of every field of a message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            start = at
            value, at = _read_varint(data, at)
            yield field, value, start
            continue
        if kind == _LENGTH:
            length, at = _read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ShardError(f"tf.train.Example: unknown wire type {kind} of field {field}")
        if length > len(data) - at:
            raise ShardError(f"tf.train.Example: field {field} asks for {length} bytes where {len(data) - at} are left")
        yield field, data[at : at + length], at
        at += length


def _messages(data: memoryview, field: int) -> Iterator[tuple[memoryview, int]]:
    """Yield the length-delimited fields of this number, each with its place; others are skipped, as protobuf asks."""
    for number, value, start in _fields(data):
        if number == field and isinstance(value, memoryview):
            yield value, start


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int64s(data: memoryview) -> list[int]:
    values: list[int] = []
    for number, value, _ in _fields(data):
        if number != 1:
            continue
        if isinstance(value, int):
            values.append(_signed(value))
            continue
        at = 0
        while at < len(value):  # packed
            packed, at = _read_varint(value, at)
            values.append(_signed(packed))
    return values


def _floats(data: memoryview) -> list[float]:
    values: list[float] = []
    for value, _ in _messages(data, 1):
        if len(value) % 4:
            raise ShardError(f"tf.train.Example: a float list of {len(value)} bytes")
        values.extend(struct.unpack(f"<{len(value) // 4}f", value))
    return values


def _feature(data: memoryview) -> Feature:
    feature: Feature = []
    for number, value, _ in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == _BYTES_LIST:
            feature = [bytes(item) for item, _ in _messages(value, 1)]
        elif number == _INT64_LIST:
            feature = _int64s(value)
        elif number == _FLOAT_LIST:
            feature = _floats(value)
    return feature


class ExampleView(Mapping[str, Feature]):
    """The features of a serialised Example by name, in its order; each is decoded when it is asked for."""

    def __init__(self, payload: _Bytes) -> None:
        """Find the features by name; raises ShardError when the message is malformed."""
        self._features: dict[str, tuple[memoryview, int]] = {}
        for content, content_at in _messages(memoryview(payload), 1):
            for entry, entry_at in _messages(content, 1):
                name, found = "", (memoryview(b""), 0)
                for number, part, part_at in _fields(entry):
                    if number == 1 and isinstance(part, memoryview):
                        name = _text(part)
                    elif number == 2 and isinstance(part, memoryview):
                        found = part, content_at + entry_at + part_at
                self._features[name] = found

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __getitem__(self, name: str) -> Feature:
        """Return the values of a feature; KeyError where there is none of this name."""
        return _feature(self._features[name][0])

    def spans(self, name: str) -> list[tuple[int, int]]:
        """Return offset in the message and size of every bytes value of a feature; none if it has no such values."""
        data, at = self._features.get(name, (memoryview(b""), 0))
        found: list[tuple[int, int]] = []
        for values, values_at in _messages(data, _BYTES_LIST):
            found.extend((at + values_at + value_at, len(value)) for value, value_at in _messages(values, 1))
        return found


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ShardError(f"tf.train.Example: a feature's name is not UTF-8: {error}") from error
