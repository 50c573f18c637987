"""The driver's connection and protocol, changed so that the bytes of a record are not copied after the socket."""

from __future__ import annotations

import ssl
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from cassandra.connection import _Frame
from cassandra.io import libevwrapper as libev
from cassandra.io.libevreactor import LibevConnection
from cassandra.protocol import ProtocolHandler, ResultMessage

from loaders.nosql.schema import DatabaseTable

VERSION: Final = 4
"""Version of the protocol: version 5 adds checksummed segments, which cost 1 s of CPU per GB here."""
_HEADER: Final = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode and length of a frame's body (native protocol v4, section 2)."""
_ROWS, _ONE_TABLE = 2, 1
"""The kind of a result with rows, and the flag of one whose columns are all of one table (section 4.2.5.2)."""
COLUMNS: Final = {"sample_id": "bigint", "label": "bigint", "file": "int", "size": "int", "record": "blob"}
"""Names and types of the columns of a sample."""
_CODES: Final = {"bigint": 2, "blob": 3, "int": 9}
_VALUES: Final = tuple(map(struct.Struct, (">q", ">q", ">i", ">i")))
"""Id, label, file and size."""
_LENGTH: Final = struct.Struct(">i")
_MAX_FRAME_BYTES: Final = 2**28
"""As the protocol limits them (section 2)."""
_TURN_BYTES: Final = 2**20
"""Bytes that a connection receives before another one has its turn."""


class SampleRow(NamedTuple):
    """A sample as the data table has it; None where a value is missing."""

    sample_id: int | None
    label: int | None
    file: int | None
    size: int | None
    record: memoryview | None


class RecordConnection(LibevConnection):  # type: ignore[misc]
    """Receives the body of each frame into memory of its own, which the rows in it share.

    The driver's own connection reads 4 kB at a time and copies each byte five times; with many frames waiting it moves
    the rest of its buffer after each of them.
    """

    is_closed: bool

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self._frame: _Frame | None = None
        self._body = self._left = memoryview(bytearray(_HEADER.size))
        super().__init__(*args, **keywords)

    def handle_read(self, watcher: Any, revents: int, errno: int | None = None) -> None:
        """Receive what is there, up to a turn; the event loop calls this while there is more."""
        if revents & libev.EV_ERROR:
            super().handle_read(watcher, revents, errno)
            return
        received = 0
        try:
            # What TLS has decrypted already makes no event.
            while not self.is_closed and (received < _TURN_BYTES or self._has_pending()):
                count = self._socket.recv_into(self._left)
                if not count:
                    self.close()
                    return
                received += count
                self._left = self._left[count:]
                if not len(self._left):
                    self._advance()
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self.defunct(error)

    def _has_pending(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _advance(self) -> None:
        """Go from a header to its body, or from a body to the next header."""
        frame, body = self._frame, self._body
        if frame is None:
            version, flags, stream, opcode, length = _HEADER.unpack(body)
            if version & 0x7F != VERSION or not 0 <= length <= _MAX_FRAME_BYTES:
                self.defunct(OSError(f"{self.endpoint}: expected a frame of protocol version {VERSION}"))
                return
            self._frame = frame = _Frame(VERSION, flags, stream, opcode, _HEADER.size, _HEADER.size + length)
            # Not zeroed first, as a bytearray is.
            self._body = self._left = body = np.empty(length, np.uint8).data
            if length:
                return
        self._frame = None
        self._body = self._left = memoryview(bytearray(_HEADER.size))
        self.process_msg(frame, body)


class RecordProtocol(ProtocolHandler):  # type: ignore[misc]
    """Decodes the answer to the query of a sample to a SampleRow, without a copy; other answers as the driver does."""

    head = b""
    """How the answer begins: with the description of its columns."""

    @classmethod
    def decode_message(cls, *arguments: Any) -> Any:
        """Return the message in a frame's body; raises struct.error or ValueError for a malformed one.

        The arguments end with stream, flags, opcode, body, decompressor and metadata. Before these, ScyllaDB's driver
        has one more than Cassandra's.
        """
        stream, flags, opcode, body = arguments[-6:-2]
        if opcode != ResultMessage.opcode or flags or body[: len(cls.head)] != cls.head:
            return super().decode_message(*arguments)
        message = ResultMessage(_ROWS)
        message.parsed_rows = _read_rows(body, len(cls.head))
        message.stream_id = stream
        message.trace_id = message.custom_payload = message.warnings = None
        return message


def make_protocol(table: DatabaseTable) -> type[RecordProtocol]:
    """Return the protocol of a session that asks for samples of a table."""
    columns = b"".join(_text(name) + _CODES[kind].to_bytes(2) for name, kind in COLUMNS.items())
    head = struct.pack(">iii", _ROWS, _ONE_TABLE, len(COLUMNS)) + _text(table.keyspace) + _text(table.name) + columns
    return type("TableProtocol", (RecordProtocol,), {"head": head})


def _text(name: str) -> bytes:
    return len(name).to_bytes(2) + name.encode()


def _read_rows(body: memoryview, at: int) -> list[SampleRow]:
    """Return the rows from a place in a frame's body on: none, or the one of a primary key."""
    (rows,) = _LENGTH.unpack_from(body, at)
    at += _LENGTH.size
    if rows == 0:
        return []
    values: list[int | None] = []
    for value in _VALUES:
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length not in (-1, value.size):
            raise ValueError(f"a value of {length} bytes, expected {value.size}")
        values.append(None if length < 0 else value.unpack_from(body, at)[0])
        at += max(length, 0)
    (length,) = _LENGTH.unpack_from(body, at)
    at += _LENGTH.size
    if length > len(body) - at:
        raise ValueError(f"a record of {length} bytes in {len(body) - at}")
    sample_id, label, file, size = values
    return [SampleRow(sample_id, label, file, size, None if length < 0 else body[at : at + length])]
