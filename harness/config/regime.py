"""A network regime: how far the data is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from harness.errors import ConfigError

__all__ = ["MAX_RTT_MS", "Regime"]

MAX_RTT_MS: Final = 3000.0


@dataclass(frozen=True, slots=True)
class Regime:
    """Network distance between the storage and the compute node; `local` has no link at all."""

    name: str
    rtt_ms: float
    """Round-trip time in ms; 0 for local."""
    rate_gbit: float | None
    """Cap of the link in Gbit/s of IP packets, each direction; None for local."""
    jitter_ms: float = 0.0
    """Standard deviation of the one-way delay in ms; packets keep their order."""
    loss_pct: float = 0.0
    """Packets lost at random, in per cent, each direction."""

    def __post_init__(self) -> None:
        where = f"regimes.{self.name}"
        for key in ("rtt_ms", "jitter_ms", "loss_pct"):
            value = getattr(self, key)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"{where}.{key}={value!r}: expected a number that is 0 or more")
        if self.rtt_ms > MAX_RTT_MS:
            raise ConfigError(
                f"{where}.rtt_ms={self.rtt_ms:g}: expected at most {MAX_RTT_MS:g} ms, a few times that of a "
                "satellite link; beyond it TCP gives up connections"
            )
        if self.jitter_ms > self.rtt_ms / 2:
            raise ConfigError(
                f"{where}.jitter_ms={self.jitter_ms:g}: is the standard deviation of the one-way delay, expected at "
                f"most that delay, {self.rtt_ms / 2:g} ms (half of rtt_ms={self.rtt_ms:g})"
            )
        if self.loss_pct >= 100:
            raise ConfigError(f"{where}.loss_pct={self.loss_pct}: expected less than 100")
        if self.rate_gbit is not None and not (math.isfinite(self.rate_gbit) and self.rate_gbit > 0):
            raise ConfigError(f"{where}.rate_gbit={self.rate_gbit}: expected more than 0 Gbit/s, or null for no link")
        if self.rate_gbit is None and (self.rtt_ms or self.jitter_ms or self.loss_pct):
            raise ConfigError(f"{where}.rate_gbit=null means no link, so rtt_ms, jitter_ms and loss_pct must be 0")

    @property
    def is_local(self) -> bool:
        """Whether the data is on the compute node itself."""
        return self.rate_gbit is None

    @property
    def queue_ms(self) -> float:
        """How long a packet may stand in the link's queue: half a round trip, at least 4 ms."""
        return max(4.0, 0.5 * self.rtt_ms)
