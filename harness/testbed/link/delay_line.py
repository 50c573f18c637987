"""One direction of the emulated link: a queue of packets with the time at which each is let go."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from harness.testbed.link.tun import wire_size

__all__ = ["DelayLine", "Impairment"]


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

    __slots__ = ("_finish_ns", "_impairment", "_random", "bytes", "drops", "lost", "packets", "waiting")

    def __init__(self, seed: int) -> None:
        self.waiting: deque[tuple[int, bytes]] = deque()
        """(release time in ns, packet), the earliest first; the owner takes them from the left."""
        self.packets = self.bytes = self.drops = self.lost = 0
        self._impairment = Impairment()
        self._random = random.Random(seed)  # noqa: S311  packet loss is no secret
        self._finish_ns = 0

    def configure(self, impairment: Impairment) -> None:
        """Treat the packets that come from now on so; those that wait keep their time."""
        self._impairment = impairment

    def accept(self, packet: bytes, now_ns: int) -> None:
        """Queue a packet that came at `now_ns`, lose it as the regime asks, or drop it for a full queue."""
        impairment = self._impairment
        count, size = wire_size(packet)
        if impairment.loss and self._random.random() < impairment.loss:
            self.lost += count
            return
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
