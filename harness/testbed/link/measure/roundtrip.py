"""The link's round-trip time by ICMP echo on a nanosecond clock.

The other end's kernel answers by itself, so no program there has to be woken, and the time is that of the link.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from statistics import NormalDist
from typing import Self

from harness.testbed.link.userspace.tun import ones_sum

ECHO_REQUEST, ECHO_REPLY = 8, 0  # RFC 792
NORMAL_P10_TO_P90 = 2 * NormalDist().inv_cdf(0.9)
HEADER = struct.Struct("!BBHHH")
"""Type, code, checksum, identifier, sequence number."""
STAMP = struct.Struct("!QQ")
"""The payload: when the request was sent, in ns of the monotonic and of the wall clock."""
PACKET_BYTES = 20 + HEADER.size + STAMP.size
"""Of a request or an answer, its IPv4 header included."""
SO_TIMESTAMPNS = 35  # asm-generic/socket.h
TIMESPEC = struct.Struct("@ll")
SPACING_NS = 10_000_000
"""On a long link the next request does not wait for the answer; so far apart they do not disturb each other."""
GRACE_NS = 1_000_000_000
"""How long the first answer may take; later ones are waited for twice as long as the slowest so far took."""


class Pinger:
    """An ICMP socket of the calling thread's network namespace; it stays there, whichever thread uses it.

    It pings one IPv4 address. Raises PermissionError when this process has no CAP_NET_RAW.
    """

    def __init__(self, host: str) -> None:
        # The socket hears the answers to every other one of its namespace, those of this process among them.
        self._identifier = secrets.randbits(16)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        # The kernel notes when an answer came, so a process that waits for a CPU does not make the link longer.
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.connect((host, 0))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ping(self, seconds: float, max_requests: int = 2000, every_ns: int | None = None) -> list[int]:
        """Measure round trips for about `seconds`; at least one request is sent.

        Args:
            seconds: how long to send requests.
            max_requests: how many to send at most.
            every_ns: time between two requests; None sends the next at an answer, or 10 ms after the last one.

        Returns:
            Round-trip times in ns, in the order of arrival; requests that were lost have none.

        Raises TimeoutError when nothing came back within 1 s of the last request.
        """
        clock = time.monotonic_ns
        trips: list[int] = []
        end = clock() + int(seconds * 1e9)
        sent = sent_at = 0
        while True:
            now = clock()
            sending = sent == 0 or (now < end and sent < max_requests)
            if sending and ((every_ns is None and len(trips) == sent) or now - sent_at >= (every_ns or SPACING_NS)):
                sent += 1
                sent_at = self.send(sent)
                continue
            if sending:
                limit = min(end, sent_at + (every_ns or SPACING_NS))
            else:
                limit = sent_at + (2 * max(trips) if trips else GRACE_NS)
                if len(trips) == sent or now >= limit:
                    break
            ready, _, _ = select.select((self._socket,), (), (), max(0, limit - now) / 1e9)
            if ready:
                answer = self.receive()
                if answer is not None:
                    trips.append(answer[1])
        if not trips:
            raise TimeoutError(f"no answer to {sent} pings within {GRACE_NS / 1e9:g} s")
        return trips

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is an answer."""
        return self._socket.fileno()

    def send(self, sequence: int) -> int:
        """Send one request, and return when, in monotonic ns."""
        sent_at = time.monotonic_ns()
        self._socket.send(self._request(sequence, sent_at))
        return sent_at

    def receive(self) -> tuple[int, int] | None:
        """Return the sequence number and the round trip, ns, of the next packet; None where it is no answer to this."""
        reply, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(TIMESPEC.size))
        now = time.monotonic_ns()
        answer = self._answer(reply)
        if answer is None:
            return None
        sequence, sent_ns, sent_wall_ns = answer
        trip = now - sent_ns
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, ns = TIMESPEC.unpack(data[: TIMESPEC.size])
                by_kernel: int = seconds * 1_000_000_000 + ns - sent_wall_ns
                # A wall clock that was set meanwhile says nothing.
                return sequence, by_kernel if 0 < by_kernel < trip else trip
        return sequence, trip

    def _request(self, sequence: int, now_ns: int) -> bytes:
        payload = STAMP.pack(now_ns, time.time_ns())
        header = HEADER.pack(ECHO_REQUEST, 0, 0, self._identifier, sequence & 0xFFFF)
        checksum = ~ones_sum(header + payload) & 0xFFFF
        return HEADER.pack(ECHO_REQUEST, 0, checksum, self._identifier, sequence & 0xFFFF) + payload

    def _answer(self, reply: bytes) -> tuple[int, int, int] | None:
        """Read sequence number and sending times from an answer to this; None for what else the socket hears."""
        reply = reply[(reply[0] & 0x0F) * 4 :]
        if len(reply) != HEADER.size + STAMP.size:
            return None
        kind, _, _, identifier, sequence = HEADER.unpack_from(reply)
        if kind != ECHO_REPLY or identifier != self._identifier:
            return None
        return sequence, *STAMP.unpack_from(reply, HEADER.size)


def percentile(values: list[int], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread(values: list[int]) -> float:
    """Return the standard deviation of values that are normally distributed, from their 10th to 90th percentile.

    A few outliers, which a busy host causes, do not move it.
    """
    return (percentile(values, 0.9) - percentile(values, 0.1)) / NORMAL_P10_TO_P90
