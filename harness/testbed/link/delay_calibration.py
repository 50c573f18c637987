"""Brings a link's measured round trip to the regime's: the kernel and the relay take some time themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.testbed.link.measure.roundtrip import Pinger, percentile
from harness.testbed.link.namespace import inside

ATTEMPTS = 4
PRECISION_MS = 0.02
PRECISION_SHARE = 0.003
GOOD_MS = 0.05
GOOD_SHARE = 0.01
DELAY_SHARE = 2 / 3
"""Least share of the round trip above the link's own that the delay makes up."""
OVERHEAD_MAX_MS = 5.0
"""More than this is a busy host and not the link."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a link was brought to a round-trip time."""

    rtt_ms: float
    """The round trip that the regime has."""
    delay_ms: float
    """The one-way delay that was set for it; half of the round trip less the link's own time."""
    measured_ms: float
    """The median round trip with that delay."""

    @property
    def is_good(self) -> bool:
        """Whether it may be used again; a host that was busy meanwhile leaves one that is not."""
        return abs(self.measured_ms - self.rtt_ms) <= max(GOOD_MS, GOOD_SHARE * self.rtt_ms)


def measure_rtt_ms(namespace: str | None, peer: str, seconds: float) -> float:
    """Measure the median round trip from a network namespace, None for the caller's, to an address, in ms.

    Raises OSError when the link carries nothing.
    """
    with inside(namespace, lambda: Pinger(peer)) as pinger:
        pinger.ping(0.0)
        return percentile(pinger.ping(seconds), 0.5) / 1e6


def calibrate(
    rtt_ms: float, floor_ms: float, set_delay_ms: Callable[[float], None], measure_ms: Callable[[float], float]
) -> Calibration:
    """Find the one-way delay with which the link's round trip is `rtt_ms`, or 0 where the link alone takes longer.

    Without delay the round trip is `floor_ms`. `set_delay_ms` sets the one-way delay in both directions, and
    `measure_ms` measures the median round trip for a number of seconds.
    """
    # What a busy host adds now, it may not add later: most of the round trip stays the delay's.
    least_ms = max(0.0, rtt_ms - floor_ms) * DELAY_SHARE / 2
    overhead_ms = floor_ms
    best: Calibration | None = None
    for _ in range(ATTEMPTS):
        delay_ms = max(least_ms, (rtt_ms - overhead_ms) / 2)
        set_delay_ms(delay_ms)
        measured_ms = measure_ms(0.1 + 2 * rtt_ms / 1e3)
        error_ms = measured_ms - rtt_ms
        if best is None or abs(error_ms) < abs(best.measured_ms - rtt_ms):
            best = Calibration(rtt_ms, delay_ms, measured_ms)
        if abs(error_ms) <= max(PRECISION_MS, PRECISION_SHARE * rtt_ms) or (delay_ms == least_ms and error_ms > 0):
            break
        overhead_ms = min(OVERHEAD_MAX_MS, max(0.0, measured_ms - 2 * delay_ms))
    assert best is not None
    set_delay_ms(best.delay_ms)
    return best
