"""How far the clock of another host is from this one's, from what both believe of UTC and from exchanges; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.results.cells import HostClock


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question to another host: when it was sent and answered by this clock, and the answer, all UTC ns."""

    sent_ns: int
    told_ns: int
    answered_ns: int

    @property
    def offset_ns(self) -> float:
        """The other clock minus this one."""
        return self.told_ns - (self.sent_ns + self.answered_ns) / 2

    @property
    def error_ns(self) -> float:
        """Bound of the offset's error: half of the exchange."""
        return (self.answered_ns - self.sent_ns) / 2


@dataclass(frozen=True, slots=True)
class HostTime:
    """What a host's NTP daemon, or its kernel, believes of its own clock."""

    source: str
    """chrony or kernel."""
    offset_ns: int
    """UTC minus the host's clock."""
    error_ns: int


def clock_offset(exchanges: Sequence[Exchange], here: HostTime | None, there: HostTime | None) -> HostClock:
    """Return the other host's clock minus this one's.

    chrony on both hosts says more than an exchange over SSH, whose error is half of its round trip. The quickest
    exchange counts where chrony contradicts it, or is not there.
    """
    quickest = min(exchanges, key=lambda one: one.error_ns)
    if here is not None and there is not None:
        offset_ns, error_ns = here.offset_ns - there.offset_ns, here.error_ns + there.error_ns
        if abs(offset_ns - quickest.offset_ns) <= error_ns + quickest.error_ns and error_ns < quickest.error_ns:
            return HostClock(there.source, offset_ns / 1e6, error_ns / 1e6)
    return HostClock("exchange over SSH", quickest.offset_ns / 1e6, quickest.error_ns / 1e6)
