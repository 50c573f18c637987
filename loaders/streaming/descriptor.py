"""Options of the connections of a ZeroMQ socket, which ZeroMQ does not offer, by their descriptors."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TypeVar

_ENDED = (errno.EBADF, errno.ENOTSOCK, errno.ENOTCONN, errno.EINVAL)

_Result = TypeVar("_Result")


def on_descriptor(descriptor: int, action: Callable[[socket.socket], _Result]) -> _Result | None:
    """Do something with a connection by ZeroMQ's descriptor; return None where it has ended meanwhile.

    Raises OSError where the action fails for another reason.
    """
    own: socket.socket | None = None
    try:
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
        return action(own)
    except OSError as error:
        if error.errno not in _ENDED:
            raise
        return None
    finally:
        if own is not None:
            own.detach()
