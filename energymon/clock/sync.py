"""How far this clock is from the controller's, by exchanges bracketed between two reads of this one.

The controller answers with the times at which it got the request and sent its answer; whatever the network did, the
offset lies within half of the exchange's time that the controller did not take (MLPerf Power brackets its clocks so).
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from energymon.clock.monotonic import LAST_NS, NS, Clock
from energymon.clock.offsets import CONTROLLER
from energymon.errors import ClockError, OptionError
from energymon.reading import ClockOffset

_REQUEST: Final = struct.Struct("!8s8s")
"""Magic and nonce."""
_REPLY: Final = struct.Struct("!8s8sqq")
"""Magic, the request's nonce, UTC ns when it was received and when this was sent."""
_MAGIC: Final = b"joulclk1"
_LARGEST: Final = 512
_FARTHEST_NS: Final = 100 * 366 * 86_400 * NS
_PORTS: Final = 65_536
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
"""[HOST:WITH:COLONS] or HOST, and a port."""


class Responder:
    """Answers requests for this host's time, on the address given and no other, while the context lasts.

    A request of 16 bytes is answered by 32, which amplifies nothing usefully, and anything else by nothing.
    """

    def __init__(self, address: str, port: int = 0, *, clock: Callable[[], int] = time.time_ns) -> None:
        """Bind a UDP socket; port 0 takes a free one. Raises ClockError when that cannot be done."""
        if not address:
            raise OptionError("the clock's responder needs the address to listen on, 192.0.2.1 or ::1 for instance")
        self._clock = clock
        family, where = _resolve(address, port, passive=True)
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(where)
        except OSError as error:
            self._socket.close()
            raise ClockError(
                f"{address}:{port}: cannot listen for clocks here ({error.strerror}); "
                "expected an address of this host and a free UDP port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="clock-responder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stopper)
        self._thread.join()
        os.close(self._stop)
        self._socket.close()

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        while all(fd != self._stop for fd, _ in poller.poll()):
            # One requester that cannot be answered, or gave up, is no reason not to answer the next.
            with suppress(OSError):
                request, sender = self._socket.recvfrom(_LARGEST)
                received_ns = self._clock()
                if len(request) == _REQUEST.size and request.startswith(_MAGIC):
                    _, nonce = _REQUEST.unpack(request)
                    self._socket.sendto(_REPLY.pack(_MAGIC, nonce, received_ns, self._clock()), sender)


def measure(
    peer: str, node: str, attempts: int = 8, timeout_s: float = 0.2, *, clock: Callable[[], int] | None = None
) -> ClockOffset:
    """Return how far the clock at `peer`, HOST:PORT, is ahead of this node's, from the quickest of some exchanges.

    With t0 and t3 this clock's times of request and answer, and t1 and t2 the peer's, the offset is
    ((t1 - t0) + (t2 - t3)) / 2 and its error at most ((t3 - t0) - (t2 - t1)) / 2. `clock` returns this node's UTC
    ns. Raises OptionError for a peer that is no HOST:PORT, and ClockError when no request was answered, or one with
    impossible times.
    """
    now = clock or Clock().now_ns
    host, port = split_address(peer) or ("", None)
    if not port:
        raise OptionError(
            f"{peer!r} is no clock: expected HOST:PORT, IPv6 in brackets, as `energymon clock --listen` printed it"
        )
    family, where = _resolve(host, port)
    found: list[ClockOffset] = []
    problem = f"none of {attempts} requests was answered within {timeout_s:g} s"
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        for _ in range(attempts):
            try:
                connection.connect(where)
                exchange = _exchange(connection, timeout_s, now)
            except OSError as error:
                problem = str(error.strerror or error)
                continue
            if exchange is not None:
                found.append(_offset(peer, node, *exchange))
    if not found:
        raise ClockError(
            f"{peer}: no clock answers there ({problem}); start `energymon clock --listen` on that host, "
            "and let UDP to that port through"
        )
    return min(found, key=lambda offset: offset.error_ns)


def _exchange(connection: socket.socket, timeout_s: float, now: Callable[[], int]) -> tuple[int, int, int, int] | None:
    """Ask once and return t0 to t3, ns; None when no proper answer came in time."""
    nonce = os.urandom(8)
    deadline = time.monotonic() + timeout_s
    sent_ns = now()
    connection.send(_REQUEST.pack(_MAGIC, nonce))
    while (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        try:
            reply = connection.recv(_LARGEST)
        except TimeoutError:
            return None
        got_ns = now()
        if len(reply) != _REPLY.size:
            continue
        magic, echoed, received_ns, answered_ns = _REPLY.unpack(reply)
        # An answer to an earlier request may come late; a time that ran backwards or too long was stepped meanwhile.
        if magic == _MAGIC and echoed == nonce and 0 <= answered_ns - received_ns <= got_ns - sent_ns:
            return sent_ns, received_ns, answered_ns, got_ns
    return None


def _offset(peer: str, node: str, sent_ns: int, received_ns: int, answered_ns: int, got_ns: int) -> ClockOffset:
    """Return the offset that an exchange shows; raises ClockError for times that cannot be worked with."""
    offset_ns = ((received_ns - sent_ns) + (answered_ns - got_ns)) // 2
    # Rounded up, as halves of a nanosecond are lost here and in the offset.
    error_ns = ((got_ns - sent_ns) - (answered_ns - received_ns)) // 2 + 1
    if not (0 <= received_ns <= answered_ns <= LAST_NS and abs(offset_ns) <= _FARTHEST_NS):
        raise ClockError(
            f"{peer}: the clock there has impossible times, {received_ns} to {answered_ns} (UTC ns); expected "
            "1970 to 2116 and less than a century from this host's: set that host's clock, or name another peer"
        )
    return ClockOffset((sent_ns + got_ns) // 2, node, CONTROLLER, offset_ns, error_ns)


def split_address(text: str) -> tuple[str, int | None] | None:
    """Return host and port of HOST[:PORT], IPv6 in brackets; None for any other text."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3] or 0) >= _PORTS:
        return None
    return match[1] or match[2], int(match[3]) if match[3] else None


def _resolve(host: str, port: int, *, passive: bool = False) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    flags = socket.AI_PASSIVE if passive else 0
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    except (OSError, UnicodeError) as error:
        raise ClockError(f"{host}:{port}: {error}; expected the name or the address of a host") from error
    family, _, _, _, where = found[0]
    return family, where
