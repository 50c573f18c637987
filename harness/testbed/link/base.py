"""What every link between the two nodes offers, and the addresses it gives them."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from harness.config.regime import Regime

__all__ = [
    "COMPUTE_ADDRESS",
    "ETHERNET_HEADER_BYTES",
    "INTERFACE",
    "MTU",
    "PREFIX_LENGTH",
    "STORAGE_ADDRESS",
    "Link",
    "LinkCounters",
]

INTERFACE = "jf0"
"""Name of the link's interface in both namespaces."""
STORAGE_ADDRESS = "10.77.0.1"
COMPUTE_ADDRESS = "10.77.0.2"
PREFIX_LENGTH = 30
MTU = 1500
"""Bytes of an IP packet; a larger one would enlarge TCP's initial window and make cold fetches too quick."""

ETHERNET_HEADER_BYTES = 14


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What the link has done since it came up, both directions together."""

    drops: int
    """Packets lost to a full queue; losses that the regime asks for are not among them."""
    packets: int
    """IP packets of at most one MTU that were carried."""
    bytes: int
    """Bytes of those packets, IP headers included."""
    cpu_s: float
    """CPU seconds of the user-space relay; 0.0 where the kernel does the work."""
    pause_s: float | None
    """Longest time for which the relay carried nothing although it was due, since the counters were last read, s; None
    where the kernel does the work."""


class Link(Protocol):
    """A full-duplex link between the storage and the compute namespace; closing removes it."""

    kind: str
    """`netem` or `relay`."""
    interface: str
    """Name of its interface in both namespaces."""

    @property
    def pid(self) -> int | None:
        """Process id of the relay, whose CPU time is not the loaders'; None for netem."""

    def set(self, regime: Regime) -> None:
        """Give the running link the regime's delay, rate, jitter and loss, calibrated on the round trip.

        Raises:
            TestbedError: the regime has no link, or the link is broken.
        """

    def counters(self) -> LinkCounters:
        """Read the cumulative counters, and the longest pause since they were last read.

        Raises:
            TestbedError: the link is broken.
        """

    def describe(self) -> dict[str, object]:
        """Tell, for a run's provenance, what the link is made of and how it was calibrated."""

    def close(self) -> None:
        """Remove the link; closing twice is harmless."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
