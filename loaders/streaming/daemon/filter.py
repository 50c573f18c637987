"""Socket filters (socket(7)): a listening socket takes no connection, or a connection nothing that is sent to it."""

from __future__ import annotations

import ctypes
import socket
import struct

__all__ = ["refuse_connections", "refuse_data"]

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27


def _returning(length: int) -> tuple[ctypes.Array[ctypes.c_char], bytes]:
    """Return a filter (linux/filter.h) whose only instruction is to keep so many bytes of any packet."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, length), 8)
    return program, struct.pack("@HP", 1, ctypes.addressof(program))


_NO_PACKET, _NO_DATA = _returning(0), _returning(1)
"""Of a packet that is not dropped the kernel keeps TCP's header at least (tcp_filter): what it acknowledges counts."""


def refuse_connections(listening: socket.socket, refuses: bool) -> None:
    """Drop the packets that would make a further connection, or take them again; the other TCP tries again."""
    _filter(listening, _NO_PACKET[1] if refuses else None)


def refuse_data(connection: socket.socket, refuses: bool) -> None:
    """Take nothing that is sent, or take it again: the other TCP sends it once more. What we send goes on."""
    _filter(connection, _NO_DATA[1] if refuses else None)


def _filter(at: socket.socket, program: bytes | None) -> None:
    if program is not None:
        at.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        return
    try:
        at.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except FileNotFoundError:
        return  # there was none
