"""Whether a gRPC server answers at an address, found out with a limit, which tf.data's own client has not."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from loaders.errors import LoaderConfigError

# The client's preface with an empty SETTINGS frame. A server sends a SETTINGS frame of its own first (RFC 9113, 3.4).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of grpc://HOST:PORT; raises LoaderConfigError for anything else."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "grpc" or parts.path or parts.query:
        raise LoaderConfigError(f"endpoint={endpoint!r}: expected grpc://HOST:PORT, such as grpc://10.77.0.1:5050")
    return host, port


def find_fault(address: tuple[str, int], timeout_s: float) -> str | None:
    """Return why no gRPC server answers at an address within `timeout_s`; None where one does."""
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(_PREFACE)
            header = connection.recv(_FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return str(error.strerror or error)
    is_grpc = len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS
    return None if is_grpc else "what answers there is no gRPC server"


def is_refused(address: tuple[str, int]) -> bool:
    """Return whether a host says that nothing listens at an address."""
    try:
        with socket.create_connection(address, 1.0):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
