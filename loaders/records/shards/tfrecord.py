"""TFRecord files: length, masked CRC-32C of the length, payload, masked CRC-32C of the payload.

Format: the TensorFlow guide "TFRecord and tf.train.Example", section "TFRecords format details".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from fastcrc.crc32 import iscsi as crc32c

from loaders.errors import ShardError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_BUFFER_BYTES = 2**20
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""What a file starts with that TensorFlow wrote with the option GZIP or ZLIB."""

HEADER_BYTES = _HEADER.size
"""Bytes of a record before its payload."""
FOOTER_BYTES = _FOOTER.size
"""Bytes of a record after its payload."""

_Bytes = bytes | bytearray | memoryview


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: _Bytes) -> int:
    """Return the CRC-32C rotated right by 15 bits plus a constant, as TFRecord stores it."""
    return _mask(crc32c(data))


def write_record(file: BinaryIO, *parts: _Bytes) -> tuple[int, int]:
    """Append one record, its payload given in parts; return its bytes in the file and its payload's checksum."""
    length, crc = 0, 0
    for part in parts:
        length += len(part)
        crc = crc32c(part, crc)
    file.write(_HEADER.pack(length, masked_crc32c(length.to_bytes(8, "little"))))
    for part in parts:
        file.write(part)
    file.write(_FOOTER.pack(_mask(crc)))
    return HEADER_BYTES + length + FOOTER_BYTES, _mask(crc)


def check_record(record: _Bytes, where: str) -> memoryview:
    """Return the payload of one whole record after checking its length and both checksums.

    Raises ShardError, which starts with `where`.
    """
    view = memoryview(record)
    expected = len(view) - HEADER_BYTES - FOOTER_BYTES
    if expected < 0:
        raise ShardError(f"{where}: a record of {len(view)} bytes, expected at least {HEADER_BYTES + FOOTER_BYTES}")
    length, length_crc = _HEADER.unpack_from(view)
    if masked_crc32c(view[:8]) != length_crc:
        raise ShardError(f"{where}: the checksum of the record's length does not match; convert the data again")
    if length != expected:
        raise ShardError(
            f"{where}: the record says {length} bytes of payload, the index says {expected}; convert the data again"
        )
    payload = view[HEADER_BYTES:-FOOTER_BYTES]
    if masked_crc32c(payload) != _FOOTER.unpack_from(view, HEADER_BYTES + length)[0]:
        raise ShardError(f"{where}: the checksum of the record's payload does not match; convert the data again")
    return payload


def count_intact(frame: memoryview, checksums: Sequence[int], *, payloads: bool = True) -> int:
    """Return how many records in a row are whole and have the expected checksums.

    `checksums` are those of the records' payloads, as an index has them. Without `payloads` they are compared to those
    that the records state, and what lies between is not read.
    """
    at, size, count = 0, len(frame), 0
    for expected in checksums:
        start = at + HEADER_BYTES
        if start > size:
            break
        length, length_crc = _HEADER.unpack_from(frame, at)
        end = start + length
        if end + FOOTER_BYTES > size or _FOOTER.unpack_from(frame, end)[0] != expected:
            break
        if payloads and (_length_crc(length) != length_crc or _mask(crc32c(frame[start:end])) != expected):
            break
        at, count = end + FOOTER_BYTES, count + 1
    return count


@lru_cache(4096)
def _length_crc(length: int) -> int:
    return masked_crc32c(length.to_bytes(8, "little"))


def read_records(path: Path) -> Iterator[memoryview]:
    """Yield the payload of every record in file order, checksums checked.

    Raises ShardError naming the file and the byte at which it is cut short, damaged or no TFRecord at all.
    """
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            size = path.stat().st_size
            offset = 0
            while offset < size:
                where = f"{path} at byte {offset}"
                record = _read(cast(BufferedReader, file), size - offset, where)
                yield check_record(record, where)
                offset += len(record)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror or error}") from error


def _read(file: BufferedReader, left: int, where: str) -> bytearray:
    """Return the next record of a file of which so many bytes are left."""
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise ShardError(f"{where}: the file ends within a record's header; copy or convert it again")
    length, length_crc = _HEADER.unpack(header)
    # A damaged length could ask for any amount of memory, so its checksum and the file's size come first.
    if masked_crc32c(header[:8]) != length_crc:
        if header.startswith(_COMPRESSED):
            raise ShardError(f"{where}: a compressed file; write it again without compression, it cannot be mapped")
        raise ShardError(
            f"{where}: the checksum of the record's length does not match; the file is damaged or no TFRecord"
        )
    size = HEADER_BYTES + length + FOOTER_BYTES
    if size > left:
        raise ShardError(f"{where}: the file ends within a record of {length} bytes; copy or convert it again")
    record = bytearray(size)
    record[:HEADER_BYTES] = header
    if file.readinto(memoryview(record)[HEADER_BYTES:]) != size - HEADER_BYTES:
        raise ShardError(f"{where}: the file became shorter while it was read")
    return record
