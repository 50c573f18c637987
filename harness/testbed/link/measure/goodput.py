"""The rate that a link carries, measured with many short-lived TCP flows from the storage to the compute node."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence

CHUNK_BYTES = 256 * 1024
BIN_NS = 5_000_000
WINDOW_BINS = 10
LATE_WINDOWS = 20
STEADY_SHARE = 0.9
"""The ramp is over in the first window that reaches this share of the late rate."""
TCP_HEADERS_BYTES = 20 + 20 + 12
"""IPv4, TCP and its timestamps option, on each segment (RFC 791, RFC 9293, RFC 7323)."""
WINDOW_START_BYTES = 10 * 1448
"""Linux's initial congestion window (RFC 6928)."""
RAMP_ROUND_TRIPS = 4
RAMP_SLACK_ROUND_TRIPS = 3
"""One to ask for the data, and what slow start waits for the receiver's window to grow."""
STEADY_S = 0.22
FLOWS_MIN, FLOWS_MAX = 4, 32


def flows_for(rtt_ms: float, rate_gbit: float) -> int:
    """How many flows fill the link after 4 round trips of slow start; fewer make larger packets, so at most 32."""
    wanted = _in_flight_bytes(rtt_ms, rate_gbit) / (WINDOW_START_BYTES << RAMP_ROUND_TRIPS)
    return min(FLOWS_MAX, max(FLOWS_MIN, round(wanted)))


def seconds_for(rtt_ms: float, rate_gbit: float, flows: int) -> float:
    """How long to drain so that the ramp is over and 0.2 s of steady flow are left."""
    growth = _in_flight_bytes(rtt_ms, rate_gbit) / flows / WINDOW_START_BYTES
    round_trips = RAMP_SLACK_ROUND_TRIPS + math.log2(max(1.0, growth))
    return STEADY_S + round_trips * rtt_ms / 1e3


def _in_flight_bytes(rtt_ms: float, rate_gbit: float) -> float:
    return rate_gbit * 1e9 / 8 * rtt_ms / 1e3


class FlowPump:
    """Sends over connections, all in the calling thread, as quickly as the link takes it.

    A connection starts at the first byte that its other side sends and ends when that side closes.

    Args:
        listener: where connections come in.
        stop_fd: descriptor that becomes readable when it is time to stop.
        answer: gets, in a thread of its own, each connection whose first byte opens a JSON object.
    """

    def __init__(self, listener: socket.socket, stop_fd: int, answer: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._stop_fd = stop_fd
        self._answer = answer
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(stop_fd, selectors.EVENT_READ)
        self._payload = memoryview(bytes(CHUNK_BYTES))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Accept and send until the stop descriptor is readable or `is_over`, asked once a second, says so."""
        while not is_over():
            for key, events in self._selector.select(1.0):
                if key.fd == self._stop_fd:
                    return
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                else:
                    self._serve(connection, events)

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._listener:
                key.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        # Slow start must not end early: the link is measured, not a congestion control.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.send(self._payload)
            if events & selectors.EVENT_READ:
                self._start_or_end(connection)
        except ConnectionError:
            self._end(connection)

    def _start_or_end(self, connection: socket.socket) -> None:
        first = connection.recv(1, socket.MSG_PEEK)
        if first == b"{":
            self._selector.unregister(connection)
            connection.setblocking(True)
            threading.Thread(target=self._answer, args=(connection,), name="train", daemon=True).start()
        elif connection.recv(1):
            self._selector.modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        else:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        # Data that is queued still would go on loading the link.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


class FlowMeter:
    """Takes in what pumping connections send and notes how much came when.

    Args:
        connections: connected to a `FlowPump`, not blocking.
    """

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._connections = connections
        self._bins: dict[int, int] = {}
        self._started = False

    def drain(self, seconds: float) -> None:
        """Start the flows once and receive data for `seconds`; raises ConnectionError when a flow is closed."""
        buffer = bytearray(16 * CHUNK_BYTES)
        clock = time.monotonic_ns
        end = clock() + int(seconds * 1e9)
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                if not self._started:
                    connection.send(b"!")
                selector.register(connection, selectors.EVENT_READ)
            self._started = True
            while (now := clock()) < end:
                for key, _ in selector.select((end - now) / 1e9):
                    connection = key.fileobj  # type: ignore[assignment]
                    # MSG_TRUNC discards inside the kernel: the copy would cost more CPU than the link.
                    count = connection.recv_into(buffer, 0, socket.MSG_TRUNC)
                    if not count:
                        raise ConnectionError("the sending side closed a flow")
                    place = clock() // BIN_NS
                    self._bins[place] = self._bins.get(place, 0) + count

    def goodput_gbit(self) -> float | None:
        """The median rate of payload once the ramp is over, in Gbit/s; None if too little came."""
        if not self._bins:
            return None
        # The first and the last bin are partly filled.
        counts = [self._bins.get(place, 0) for place in range(min(self._bins) + 1, max(self._bins))]
        # Sliding over several bins evens out what a busy receiver takes in late and in one go.
        windows = [sum(counts[i : i + WINDOW_BINS]) for i in range(len(counts) - WINDOW_BINS + 1)]
        if not windows:
            return None
        late = statistics.median(windows[-LATE_WINDOWS:])
        if not late:
            return None
        start = next(i for i, window in enumerate(windows) if window >= STEADY_SHARE * late)
        return statistics.median(windows[start:]) * 8 / (WINDOW_BINS * BIN_NS)


def link_gbit(goodput_gbit: float, segment_bytes: int) -> float:
    """Turn a rate of payload into one of IP packets, for full segments of `segment_bytes` of payload."""
    return goodput_gbit * (segment_bytes + TCP_HEADERS_BYTES) / segment_bytes
