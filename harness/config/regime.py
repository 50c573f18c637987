"""A network regime: how far the data is."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field, model_validator

from harness.config.validation import Section

MAX_RTT_MS: Final = 3000.0


class NetworkPath(Section):
    """One of the routes that connections take between the two nodes; what it leaves out is the regime's."""

    rtt_ms: Annotated[float, Field(ge=0, description="a round trip in ms, from the regime's on")] | None = None
    rate_gbit: Annotated[float, Field(gt=0, description="Gbit/s, at most the regime's")] | None = None
    """Cap of all its connections together in Gbit/s of IP packets, each direction; None for none beside the link's."""
    jitter_ms: Annotated[float, Field(ge=0, description="ms, at most half of the path's rtt_ms")] | None = None
    """Standard deviation of the one-way delay in ms; packets of one path keep their order."""
    loss_pct: Annotated[float, Field(ge=0, lt=100, description="per cent, 0 to below 100")] | None = None


def _freeze(value: object) -> object:
    """Return a list as a tuple, which a strict model expects."""
    return tuple(value) if isinstance(value, list) else value


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
    paths: Annotated[tuple[NetworkPath, ...], BeforeValidator(_freeze)] = Field(
        default=(), exclude_if=lambda paths: not paths
    )
    """Routes that TCP connections take in turn; all else, such as probes, sees the regime itself. Empty: one route."""

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
        for place, path in enumerate(self.paths):
            self._check_path(f"paths.{place}", path)
        return self

    def _check_path(self, key: str, path: NetworkPath) -> None:
        if self.rate_gbit is None:
            raise ValueError(f"{key}: a regime without a link (rate_gbit=null) has no paths; leave paths out")
        rtt_ms, jitter_ms = self.path_rtt_ms(path), self.path_jitter_ms(path)
        if not self.rtt_ms <= rtt_ms <= MAX_RTT_MS:
            raise ValueError(
                f"{key}.rtt_ms={rtt_ms:g}: expected {self.rtt_ms:g} (rtt_ms of the regime, its nearest path) to "
                f"{MAX_RTT_MS:g} ms"
            )
        if path.rate_gbit is not None and path.rate_gbit > self.rate_gbit:
            raise ValueError(
                f"{key}.rate_gbit={path.rate_gbit:g}: expected at most rate_gbit={self.rate_gbit:g} of the regime, "
                "which all paths share"
            )
        if jitter_ms > rtt_ms / 2:
            raise ValueError(f"{key}.jitter_ms={jitter_ms:g}: expected at most its one-way delay, {rtt_ms / 2:g} ms")

    def path_rtt_ms(self, path: NetworkPath) -> float:
        """Return the round trip of a path in ms."""
        return self.rtt_ms if path.rtt_ms is None else path.rtt_ms

    def path_jitter_ms(self, path: NetworkPath) -> float:
        """Return the standard deviation of a path's one-way delay in ms."""
        return self.jitter_ms if path.jitter_ms is None else path.jitter_ms

    def path_loss_pct(self, path: NetworkPath) -> float:
        """Return the per cent of packets that a path loses, each direction."""
        return self.loss_pct if path.loss_pct is None else path.loss_pct

    @property
    def is_local(self) -> bool:
        """Whether the data is on the compute node itself."""
        return self.rate_gbit is None

    @property
    def queue_ms(self) -> float:
        """How long a packet may wait in the link's queue: half a round trip, at least 4 ms."""
        return max(4.0, 0.5 * self.rtt_ms)
