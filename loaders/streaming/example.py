"""`tf.train.Example` messages: the few protobuf rules that they need, written and read.

Schema: tensorflow/core/example/{example,feature}.proto. Encoding: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from loaders.streaming.errors import ShardError

__all__ = ["Feature", "decode_example", "encode_image_example"]

Feature = list[bytes] | list[int] | list[float]
"""Values of one feature: a bytes, int64 or float list."""

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


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(content)) + content


def _entry(name: str, feature: bytes) -> bytes:
    return _message(1, _message(1, name.encode()) + _message(2, feature))


def _int64(value: int) -> bytes:
    return _message(_INT64_LIST, _message(1, _varint(value)))


def _bytes(value: bytes) -> bytes:
    return _message(_BYTES_LIST, _message(1, value))


def encode_image_example(*, sample_id: int, label: int, path: str, image: bytes) -> tuple[bytes, int]:
    """Return a serialised Example and the offset of the image's bytes in it.

    Features: `id` and `image/class/label` (int64), `image/path` and `image/encoded` (bytes). The image comes
    last, so it is the message's tail.
    """
    features = (
        _entry("id", _int64(sample_id))
        + _entry("image/class/label", _int64(label))
        + _entry("image/path", _bytes(path.encode()))
        + _entry("image/encoded", _bytes(image))
    )
    example = _message(1, features)
    return example, len(example) - len(image)


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


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield (field number, wire type, value) of every field of a message."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield field, kind, value
            continue
        if kind == _LENGTH:
            length, at = _read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ShardError(f"tf.train.Example: unknown wire type {kind} of field {field}")
        if length > len(data) - at:
            raise ShardError(f"tf.train.Example: field {field} asks for {length} bytes where {len(data) - at} are left")
        yield field, kind, data[at : at + length]
        at += length


def _messages(data: memoryview, field: int) -> Iterator[memoryview]:
    """Yield the length-delimited fields of this number and skip the others, as protobuf asks."""
    for number, _, value in _fields(data):
        if number == field and isinstance(value, memoryview):
            yield value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int64s(data: memoryview) -> list[int]:
    values: list[int] = []
    for number, _, value in _fields(data):
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
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            if len(value) % 4:
                raise ShardError(f"tf.train.Example: a float list of {len(value)} bytes")
            values.extend(struct.unpack(f"<{len(value) // 4}f", value))
    return values


def _feature(data: memoryview) -> Feature:
    feature: Feature = []
    for number, _, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == _BYTES_LIST:
            feature = [bytes(item) for item in _messages(value, 1)]
        elif number == _INT64_LIST:
            feature = _int64s(value)
        elif number == _FLOAT_LIST:
            feature = _floats(value)
    return feature


def decode_example(payload: bytes | memoryview) -> Mapping[str, Feature]:
    """Return the features of a serialised Example by name.

    Raises ShardError when the message is malformed.
    """
    features: dict[str, Feature] = {}
    for content in _messages(memoryview(payload), 1):
        for entry in _messages(content, 1):
            name, value = "", memoryview(b"")
            for number, _, part in _fields(entry):
                if number == 1 and isinstance(part, memoryview):
                    try:
                        name = bytes(part).decode()
                    except UnicodeDecodeError as error:
                        raise ShardError(f"tf.train.Example: a feature's name is not UTF-8: {error}") from error
                elif number == 2 and isinstance(part, memoryview):
                    value = part
            features[name] = _feature(value)
    return features
