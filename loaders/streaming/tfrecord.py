"""TFRecord files: length, masked CRC-32C of the length, payload, masked CRC-32C of the payload.

Format: the TensorFlow guide "TFRecord and tf.train.Example", section "TFRecords format details".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from loaders.streaming.crc32c import crc32c
from loaders.streaming.errors import ShardError

__all__ = ["FOOTER_BYTES", "HEADER_BYTES", "check_record", "masked_crc32c", "read_records", "write_record"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8

HEADER_BYTES = _HEADER.size
"""Bytes of a record before its payload."""
FOOTER_BYTES = _FOOTER.size
"""Bytes of a record after its payload."""


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C rotated right by 15 bits plus a constant, as TFRecord stores it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def write_record(file: BinaryIO, payload: bytes) -> int:
    """Append one record and return its size in the file in bytes."""
    length = len(payload).to_bytes(8, "little")
    file.write(_HEADER.pack(len(payload), masked_crc32c(length)))
    file.write(payload)
    file.write(_FOOTER.pack(masked_crc32c(payload)))
    return HEADER_BYTES + len(payload) + FOOTER_BYTES


def check_record(record: bytes | memoryview, where: str) -> memoryview:
    """Return the payload of one whole record after checking its length and both checksums.

    Raises ShardError, which starts with `where`.
    """
    view = memoryview(record)
    if len(view) < HEADER_BYTES + FOOTER_BYTES:
        raise ShardError(f"{where}: a record of {len(view)} bytes, expected at least {HEADER_BYTES + FOOTER_BYTES}")
    length, length_crc = _HEADER.unpack_from(view)
    if masked_crc32c(view[:8]) != length_crc:
        raise ShardError(f"{where}: the checksum of the record's length does not match; convert the data again")
    if length != len(view) - HEADER_BYTES - FOOTER_BYTES:
        raise ShardError(
            f"{where}: the record says {length} bytes of payload, the index says "
            f"{len(view) - HEADER_BYTES - FOOTER_BYTES}; convert the data again"
        )
    payload = view[HEADER_BYTES:-FOOTER_BYTES]
    if masked_crc32c(payload) != _FOOTER.unpack_from(view, HEADER_BYTES + length)[0]:
        raise ShardError(f"{where}: the checksum of the record's payload does not match; convert the data again")
    return payload


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the payload of every record in file order, checksums checked.

    Raises ShardError naming the file and the byte at which it is cut short or damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = 0
        while offset < size:
            where = f"{path} at byte {offset}"
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                raise ShardError(f"{where}: the file ends within a record's header")
            length, length_crc = _HEADER.unpack(header)
            # A damaged length could ask for any amount of memory, so its checksum comes first.
            if masked_crc32c(header[:8]) != length_crc:
                raise ShardError(f"{where}: the checksum of the record's length does not match")
            body = file.read(length + FOOTER_BYTES)
            if len(body) < length + FOOTER_BYTES:
                raise ShardError(f"{where}: the file ends within a record of {length} bytes")
            yield bytes(check_record(header + body, where))
            offset += HEADER_BYTES + length + FOOTER_BYTES
