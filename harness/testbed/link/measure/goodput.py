"""The rate that a link carries, measured with many short-lived TCP flows from the storage to the compute node."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence

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


def pump(connection: socket.socket) -> None:
    """Send over a connection as quickly as the link takes it; raises ConnectionError when the other side closes it."""
    # Data that is queued still when it is closed would go on loading the link.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Slow start must not end early: the link is measured, not a congestion control.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    payload = bytes(CHUNK_BYTES)
    while True:
        connection.sendall(payload)


def drain(connections: Sequence[socket.socket], seconds: float) -> dict[int, int]:
    """Start the flows of connections to the probe's server, which do not block, and take data in for some seconds.

    Returns the bytes that came by time, in bins of `BIN_NS`. Raises ConnectionError when a flow is closed.
    """
    buffer, bins = bytearray(16 * CHUNK_BYTES), Counter[int]()
    clock = time.monotonic_ns
    end = clock() + int(seconds * 1e9)
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.send(b"!")
            selector.register(connection, selectors.EVENT_READ, connection)
        while (now := clock()) < end:
            for key, _ in selector.select((end - now) / 1e9):
                # MSG_TRUNC discards inside the kernel: the copy would cost more CPU than the link.
                count = key.data.recv_into(buffer, 0, socket.MSG_TRUNC)
                if not count:
                    raise ConnectionError("the sending side closed a flow")
                bins[clock() // BIN_NS] += count
    return bins


def goodput_gbit(bins: Mapping[int, int]) -> float | None:
    """Return the median rate of payload once the ramp is over, in Gbit/s, of bytes by bin; None if too little came."""
    if not bins:
        return None
    # The first and the last bin are partly filled.
    counts = [bins.get(place, 0) for place in range(min(bins) + 1, max(bins))]
    # Sliding over several bins evens out what a busy receiver takes in late and in one go.
    windows = [sum(counts[i : i + WINDOW_BINS]) for i in range(len(counts) - WINDOW_BINS + 1)]
    if not windows:
        return None
    late = statistics.median(windows[-LATE_WINDOWS:])
    if not late:
        return None
    start = next(i for i, window in enumerate(windows) if window >= STEADY_SHARE * late)
    return statistics.median(windows[start:]) * 8 / (WINDOW_BINS * BIN_NS)


def link_gbit(goodput: float, segment_bytes: int) -> float:
    """Turn a rate of payload into one of IP packets, for full segments of `segment_bytes` of payload."""
    return goodput * (segment_bytes + TCP_HEADERS_BYTES) / segment_bytes
