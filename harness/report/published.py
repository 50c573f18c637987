"""What the EMLIO paper reports for figure 5, ResNet-50 on a 10 GB subset of ImageNet (section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CITATION",
    "CONDITIONS",
    "ENERGY_KJ",
    "EPOCH_S",
    "RTT_MS",
    "SAMPLES",
    "WORKLOAD",
    "EnergyRange",
    "matching_rtt_ms",
]

CITATION = "Jamil, Zulkar Nine and Kosar, EMLIO, 2025, section 5.1 and figure 5"
CONDITIONS = "10 GB of ImageNet, Quadro RTX 6000"
WORKLOAD = "resnet50"
"""The workload that the values are of."""

SAMPLES = 100_000
"""Samples of an epoch: 10 GB at 0.1 MB a sample."""

RTT_MS = (0.0, 0.1, 10.0, 30.0)
"""Round-trip times of the paper's regimes in ms; 0 is local disk."""

EPOCH_S = {
    "pytorch": {0.0: 172.4, 0.1: 175.5, 10.0: 1202.2, 30.0: 4232.4},
    "dali": {0.0: 151.7, 0.1: 165.4, 10.0: 552.5, 30.0: 1699.3},
    "streaming": {0.0: 157.1, 0.1: 156.6, 10.0: 156.5, 30.0: 156.2},
}
"""Seconds per epoch by loader and RTT in ms; the paper's own loader stands under streaming."""


@dataclass(frozen=True, slots=True)
class EnergyRange:
    """Kilojoules per epoch between which the text puts a loader; low and high agree where it gives one value."""

    cpu: tuple[float, float]
    gpu: tuple[float, float]
    dram: tuple[float, float] | None = None
    """None where the text gives no value."""

    @property
    def low(self) -> float:
        """The least total that the text allows, in kJ."""
        return self.cpu[0] + self.gpu[0] + (self.dram[0] if self.dram else 0.0)

    @property
    def high(self) -> float:
        """The greatest total that the text allows, in kJ, over the domains it names."""
        return self.cpu[1] + self.gpu[1] + (self.dram[1] if self.dram else 0.0)


_ANY_LOADER_LOCAL = EnergyRange(cpu=(9.5, 12.0), gpu=(26.2, 27.3), dram=(0.0, 1.3))

ENERGY_KJ = {
    "pytorch": {0.0: _ANY_LOADER_LOCAL},
    "dali": {0.0: _ANY_LOADER_LOCAL},
    "streaming": {
        0.0: _ANY_LOADER_LOCAL,
        0.1: EnergyRange(cpu=(10.1, 10.1), gpu=(26.3, 26.3)),
        10.0: EnergyRange(cpu=(9.9, 9.9), gpu=(25.9, 25.9)),
        30.0: EnergyRange(cpu=(10.0, 10.0), gpu=(26.2, 26.2)),
    },
}
"""Energy per epoch by loader and RTT in ms, as far as the text gives it; the rest is in the plot alone."""


def matching_rtt_ms(rtt_ms: float, *, local: bool) -> float | None:
    """Return the paper's regime that equals ours, within 5 % of the RTT; None when it has none."""
    if local:
        return 0.0
    return next((known for known in RTT_MS if known and abs(rtt_ms - known) <= 0.05 * known), None)
