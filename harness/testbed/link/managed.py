"""What both kinds of link share: addresses, TCP settings, rate cap, calibration and life cycle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from types import TracebackType
from typing import Self

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.testbed.link.base import (
    COMPUTE_ADDRESS,
    INTERFACE,
    MTU,
    PREFIX_LENGTH,
    STORAGE_ADDRESS,
    LinkCounters,
)
from harness.testbed.link.calibration import Calibration, calibrate, measure_rtt_ms
from harness.testbed.link.namespace import run_in
from harness.testbed.link.qdisc import describe_qdiscs
from harness.testbed.link.tcp import read_tcp, tune_tcp

__all__ = ["ManagedLink"]

QUEUE_LENGTH_PACKETS = 10_000
"""The device's own ring; a relay that the host holds up for 0.1 s at 10 Gbit/s must not lose packets."""


class ManagedLink(ABC):
    """A link that is up from construction on; the kinds differ in what delays the packets."""

    kind: str
    interface = INTERFACE

    def __init__(self, storage_namespace: str, compute_namespace: str) -> None:
        self._namespaces = (storage_namespace, compute_namespace)
        self._calibrations: dict[float, Calibration] = {}
        self._notes: list[str] = []
        self._regime: Regime | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the relay; None where the kernel does the work."""
        return None

    @abstractmethod
    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        """Delay and lose packets in both directions from now on."""

    @abstractmethod
    def _cap(self, rate_gbit: float) -> None:
        """Cap the rate in both directions from now on."""

    @abstractmethod
    def _remove(self) -> None:
        """Take the link away; called once."""

    @abstractmethod
    def counters(self) -> LinkCounters:
        """Read the cumulative counters."""

    def set(self, regime: Regime) -> None:
        """Give the running link the regime's delay, rate, jitter and loss, calibrated on the round trip.

        Raises:
            TestbedError: the regime has no link, or the link is broken.
        """
        if regime.rate_gbit is None:
            raise TestbedError(
                f"regimes.{regime.name}.rate_gbit is null: a link needs a rate; a local regime has no link to set"
            )
        self._cap(regime.rate_gbit)
        calibration = self._calibrations.get(regime.rtt_ms)
        if calibration is None or not calibration.is_good:
            try:
                calibration = calibrate(
                    regime.rtt_ms,
                    lambda delay_ms: self._shape(regime, delay_ms, 0.0, 0.0),
                    lambda seconds: measure_rtt_ms(self._namespaces[1], seconds),
                )
            except OSError as error:
                raise TestbedError(
                    f"{self.kind} link between {' and '.join(self._namespaces)} carries nothing: {error}"
                ) from error
            self._calibrations[regime.rtt_ms] = calibration
        self._shape(regime, calibration.delay_ms, regime.jitter_ms, regime.loss_pct)
        self._regime = regime

    def note(self, text: str) -> None:
        """Add a line to the link's provenance."""
        self._notes.append(text)

    def describe(self) -> dict[str, object]:
        """Tell what the link is made of and how it was calibrated."""
        return {
            "kind": self.kind,
            "interface": INTERFACE,
            "mtu_bytes": MTU,
            "regime": None if self._regime is None else self._regime.name,
            "calibrations": [asdict(calibration) for calibration in self._calibrations.values()],
            "storage_tcp": read_tcp(self._namespaces[0]),
            "compute_tcp": read_tcp(self._namespaces[1]),
            "storage_qdiscs": describe_qdiscs(self._namespaces[0]),
            "compute_qdiscs": describe_qdiscs(self._namespaces[1]),
            "notes": list(self._notes),
        }

    def close(self) -> None:
        """Remove the link; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bring_up(self) -> None:
        """Give both ends of the interface their address and the namespaces their TCP settings."""
        addresses = (STORAGE_ADDRESS, COMPUTE_ADDRESS)
        for namespace, address in zip(self._namespaces, addresses, strict=True):
            # Before the interface is up, so that nothing is announced over it.
            self._notes += [f"{namespace}: {note}" for note in tune_tcp(namespace)]
            run_in(
                namespace,
                ["ip", "-batch", "-"],
                stdin=(
                    f"link set lo up\n"
                    f"link set {INTERFACE} mtu {MTU} txqueuelen {QUEUE_LENGTH_PACKETS}\n"
                    f"address add {address}/{PREFIX_LENGTH} dev {INTERFACE}\n"
                    f"link set {INTERFACE} up\n"
                ),
            )
