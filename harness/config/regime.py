"""A network regime: how far the data is."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from harness.config.validation import Section

MAX_RTT_MS: Final = 3000.0


class Regime(Section):
    """Network distance between the storage and the compute node; `local` has no link at all."""

    name: str
    rtt_ms: Annotated[float, Field(ge=0)] = 0.0
    """Round-trip time in ms; 0 for local."""
    rate_gbit: Annotated[float, Field(gt=0)] | None = None
    """Cap of the link in Gbit/s of IP packets, each direction; None for local."""
    jitter_ms: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the one-way delay in ms; packets keep their order."""
    loss_pct: Annotated[float, Field(ge=0, lt=100)] = 0.0
    """Packets lost at random, in per cent, each direction."""

    @model_validator(mode="after")
    def _check_link(self) -> Regime:
        if self.rtt_ms > MAX_RTT_MS:
            raise ValueError(
                f"rtt_ms={self.rtt_ms:g}: expected at most {MAX_RTT_MS:g} ms, a few times that of a satellite link; "
                "beyond it TCP gives up connections"
            )
        if self.jitter_ms > self.rtt_ms / 2:
            raise ValueError(
                f"jitter_ms={self.jitter_ms:g}: is the standard deviation of the one-way delay, expected at most that "
                f"delay, {self.rtt_ms / 2:g} ms (half of rtt_ms={self.rtt_ms:g})"
            )
        if self.is_local and (self.rtt_ms or self.jitter_ms or self.loss_pct):
            raise ValueError("rate_gbit=null means no link, so rtt_ms, jitter_ms and loss_pct must be 0")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the data is on the compute node itself."""
        return self.rate_gbit is None

    @property
    def queue_ms(self) -> float:
        """How long a packet may wait in the link's queue: half a round trip, at least 4 ms."""
        return max(4.0, 0.5 * self.rtt_ms)
