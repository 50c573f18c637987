"""A link between the two nodes, netem's or the relay's: addresses, TCP settings, rate cap, calibration and life."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from harness.errors import TestbedError
from harness.testbed.link.delay_calibration import Calibration, calibrate, measure_rtt_ms
from harness.testbed.link.namespace import COMPUTE_ADDRESS, INTERFACE, MTU, STORAGE_ADDRESS, run_in
from harness.testbed.link.qdisc import describe_qdiscs
from harness.testbed.link.tcp import read_tcp, tune_tcp
from harness.testbed.link.userspace.paths import PathCounters

if TYPE_CHECKING:
    from harness.config.regime import Regime


FLOOR_ATTEMPTS = 3
FLOOR_S = 0.05
PREFIX_LENGTH = 30
NO_PATHS: Final = (
    "only the delay line (testbed.link=relay) sends connections over different paths, and netem does not; "
    "use testbed=netns with testbed.link=relay or auto, or leave the paths out"
)
QUEUE_LENGTH_PACKETS = 10_000
"""The device's own ring; a relay that the host delays by 0.1 s at 10 Gbit/s must not lose packets."""


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
    paths: tuple[PathCounters, ...] = ()
    """Of each path of the regime, in its order, since the link was set to it."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the counters that another process sent as JSON."""
        return cls(**{**fields, "paths": tuple(PathCounters(**path) for path in fields["paths"])})


class Link(ABC):
    """A full-duplex link between storage and compute, up from construction until it is closed."""

    kind: str
    """`netem` or `relay`."""
    interface = INTERFACE
    """Name of its interface at both ends."""
    floor_ms: float | None = None
    """Round trip of the link without delay, measured when it came up; None where its owner does not say."""
    header_bytes = 0
    """Bytes by which the interface's counters count a packet as larger than it is: its Ethernet header."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the relay, whose CPU time is not the loaders'; None for netem."""
        return None

    @abstractmethod
    def set(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the running link the regime's delay, rate, jitter and loss, calibrated on the round trip.

        Args:
            regime: what to set.
            recalibrate: whether to calibrate again a link that was calibrated for this round trip; default: no.

        Raises TestbedError when the regime has no link, or the link is broken.
        """

    @abstractmethod
    def counters(self) -> LinkCounters:
        """Read the cumulative counters, and the longest pause since they were last read.

        Raises TestbedError when the link is broken.
        """

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Describe, for a run's provenance, the parts of the link and its calibration."""

    def _remove(self) -> None:  # noqa: B027 - a link that another process owns stays
        """Take the link away; called once."""

    def note(self, text: str) -> None:
        """Add a line to the link's provenance."""
        self._notes.append(text)

    def close(self) -> None:
        """Remove the link; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShapedLink(Link):
    """A link that this process shapes and calibrates; the kinds differ in the part that delays the packets."""

    has_paths = False
    """Whether TCP connections can take different paths."""

    def __init__(self, storage_namespace: str, compute_namespace: str) -> None:
        super().__init__()
        self._namespaces = (storage_namespace, compute_namespace)
        self._calibrations: list[Calibration] = []
        self._regime: Regime | None = None

    def _measure_rtt_ms(self, seconds: float) -> float:
        return measure_rtt_ms(self._namespaces[1], STORAGE_ADDRESS, seconds)

    def _measure_floor(self) -> None:
        """Measure the round trip of the link, which is up and has no delay yet. Raises TestbedError."""
        try:
            # A busy host adds to some of the medians.
            self.floor_ms = min(self._measure_rtt_ms(FLOOR_S) for _ in range(FLOOR_ATTEMPTS))
        except OSError as error:
            raise self._silent(error) from error

    def _silent(self, error: OSError) -> TestbedError:
        return TestbedError(f"{self.kind} link between {' and '.join(self._namespaces)} carries nothing: {error}")

    @abstractmethod
    def _shape(self, regime: Regime, delay_ms: float, jitter_ms: float, loss_pct: float) -> None:
        """Delay and lose packets in both directions from now on."""

    @abstractmethod
    def _cap(self, rate_gbit: float) -> None:
        """Cap the rate in both directions from now on."""

    def set(self, regime: Regime, *, recalibrate: bool = False) -> None:
        """Give the running link the regime's delay, rate, jitter and loss, calibrated; raises TestbedError."""
        if regime.rate_gbit is None:
            raise TestbedError(
                f"regimes.{regime.name}.rate_gbit is null: a link needs a rate; a local regime has no link to set"
            )
        if regime.paths and not self.has_paths:
            raise TestbedError(f"regimes.{regime.name}.paths: {NO_PATHS}")
        self._cap(regime.rate_gbit)
        # Pings do not take the paths.
        bare = regime.model_copy(update={"paths": ()})
        calibration = next((one for one in reversed(self._calibrations) if one.rtt_ms == regime.rtt_ms), None)
        if calibration is None or recalibrate or not calibration.is_good:
            try:
                calibration = calibrate(
                    regime.rtt_ms,
                    self.floor_ms or 0.0,
                    lambda delay_ms: self._shape(bare, delay_ms, 0.0, 0.0),
                    self._measure_rtt_ms,
                )
            except OSError as error:
                raise self._silent(error) from error
            self._calibrations.append(calibration)
        self._shape(regime, calibration.delay_ms, regime.jitter_ms, regime.loss_pct)
        self._regime = regime

    def describe(self) -> dict[str, object]:
        """Describe, for a run's provenance, the parts of the link and its calibration."""
        return {
            "kind": self.kind,
            "interface": self.interface,
            "floor_ms": self.floor_ms,
            "regime": None if self._regime is None else self._regime.name,
            "calibrations": [asdict(calibration) for calibration in self._calibrations],
            "notes": list(self._notes),
            **self._describe_ends(),
        }

    def _describe_ends(self) -> dict[str, object]:
        """Describe both ends of the link."""
        return {
            "mtu_bytes": MTU,
            "storage_tcp": read_tcp(self._namespaces[0]),
            "compute_tcp": read_tcp(self._namespaces[1]),
            "storage_qdiscs": describe_qdiscs(self._namespaces[0]),
            "compute_qdiscs": describe_qdiscs(self._namespaces[1]),
        }

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
