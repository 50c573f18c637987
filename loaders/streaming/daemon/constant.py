"""Frames of memory that stays where it is for as long as there are sockets: sent without a copy and without a word.

pyzmq counts references to what it sends without a copy, and has a thread that is told of every frame that left. A
mapped shard outlives every frame, so ZeroMQ need not tell (zmq_msg_init_data(3) without a function to free).
"""

from __future__ import annotations

import ctypes
import os

import zmq
from zmq.backend.cython import _zmq

__all__ = ["send_constant"]

# Of the library that pyzmq itself uses, whichever it is. The interpreter's lock is kept: nothing here waits.
_library = ctypes.PyDLL(_zmq.__file__)
_init = _library.zmq_msg_init_data
_init.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
_send = _library.zmq_msg_send
_send.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_error = _library.zmq_errno
_MESSAGE_BYTES = 64
"""Size of zmq_msg_t, which zmq.h fixes."""
_message = ctypes.create_string_buffer(_MESSAGE_BYTES + 64)
# A message has to be aligned as a pointer is.
_at = (ctypes.addressof(_message) + 63) // 64 * 64


def send_constant(socket: zmq.Socket[bytes], address: int, nbytes: int, *, more: bool) -> None:
    """Send memory that stays until the socket's context has ended; one thread at a time may call this.

    Raises ZMQError as pyzmq's own send does.
    """
    _init(_at, address, nbytes, None, None)
    if _send(_at, socket.underlying, zmq.SNDMORE if more else 0) < 0:
        number = _error()
        raise zmq.ZMQError(number, os.strerror(number))
