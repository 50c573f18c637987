"""One direction of the emulated link: a queue of packets with the time at which each is let go."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

from harness.testbed.link.userspace.tun import wire_size, without_segments


@dataclass(frozen=True, slots=True)
class Impairment:
    """What one direction does to its packets."""

    delay_ns: int = 0
    """One-way delay in ns."""
    jitter_ns: int = 0
    """Standard deviation of the delay in ns; a packet never overtakes another."""
    loss: float = 0.0
    """Share of packets lost at random, 0 to 1."""
    rate_bits_s: int | None = None
    """Cap in bit/s of IP packets; None where the kernel caps the rate before the line."""
    queue_ns: int = 0
    """How long a packet may wait for the capped rate before it is dropped, in ns."""


class DelayLine:
    """Holds packets in order until they are due."""

    __slots__ = ("_finish_ns", "_impairment", "_random", "_spared", "bytes", "drops", "lost", "packets", "waiting")

    def __init__(self, seed: int) -> None:
        self.waiting: deque[tuple[int, bytes]] = deque()
        """(release time in ns, packet), the earliest first; the owner takes them from the left."""
        self.packets = self.bytes = self.drops = self.lost = 0
        self._impairment = Impairment()
        self._random = random.Random(seed)  # noqa: S311  packet loss is no secret
        self._finish_ns = 0
        self._spared = 0
        """Packets that pass before the next one is lost."""

    def configure(self, impairment: Impairment) -> None:
        """Treat the packets that come from now on so; those that wait keep their time."""
        self._impairment = impairment
        self._spared = self._gap() if impairment.loss else 0

    def absorb(self, other: DelayLine) -> None:
        """Take over the packets of another line, which keep their time, and its counters without its drops."""
        self.waiting = deque(sorted([*self.waiting, *other.waiting], key=itemgetter(0)))
        self.packets += other.packets
        self.bytes += other.bytes
        self.lost += other.lost

    def accept(self, packet: bytes, now_ns: int) -> None:
        """Queue a packet that came at `now_ns`, lose it as the regime asks, or drop it for a full queue.

        Each segment of a super-packet is lost or not by itself.
        """
        count, size = wire_size(packet)
        if self._impairment.loss:
            if self._spared < count:
                left = without_segments(packet, self._lost_of(count))
                sizes = [wire_size(part) for part in left]
                self.lost += count - sum(segments for segments, _ in sizes)
                for part, (segments, nbytes) in zip(left, sizes, strict=True):
                    self._hold(part, segments, nbytes, now_ns)
                return
            self._spared -= count
        self._hold(packet, count, size, now_ns)

    def _lost_of(self, count: int) -> list[int]:
        """Draw which of the next `count` packets are lost."""
        lost, place = [], self._spared
        while place < count:
            lost.append(place)
            place += 1 + self._gap()
        self._spared = place - count
        return lost

    def _gap(self) -> int:
        """Draw how many packets pass between two that are lost."""
        return int(math.log(1.0 - self._random.random()) / math.log1p(-self._impairment.loss))

    def _hold(self, packet: bytes, count: int, size: int, now_ns: int) -> None:
        impairment = self._impairment
        release_ns = now_ns + impairment.delay_ns
        if impairment.rate_bits_s is not None:
            start_ns = max(now_ns, self._finish_ns)
            if start_ns - now_ns > impairment.queue_ns:
                self.drops += count
                return
            self._finish_ns = start_ns + size * 8_000_000_000 // impairment.rate_bits_s
            release_ns = self._finish_ns + impairment.delay_ns
        if impairment.jitter_ns:
            release_ns = max(now_ns, release_ns + round(self._random.gauss(0.0, impairment.jitter_ns)))
        if self.waiting:
            release_ns = max(release_ns, self.waiting[-1][0])
        self.packets += count
        self.bytes += size
        self.waiting.append((release_ns, packet))
