"""What the EMLIO paper reports of its figures 5 and 7 to 10 (section 5), as far as its text gives numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.report.folder import Results

__all__ = ["FIG5", "FIG7", "FIG8", "FIG9", "FIG10", "EnergyRange", "PaperFigure", "figure_of"]

_AUTHORS = "Jamil, Zulkar Nine and Kosar, EMLIO, 2025"
_GPU = "Quadro RTX 6000"


@dataclass(frozen=True, slots=True)
class EnergyRange:
    """Kilojoules per epoch between which the text puts a loader; low and high agree where it gives one value."""

    cpu: tuple[float, float]
    gpu: tuple[float, float]
    dram: tuple[float, float] | None = None
    """None where the text gives no value."""

    @classmethod
    def exactly(cls, *, cpu: float, dram: float, gpu: float) -> EnergyRange:
        """Make a range of which every domain is one value."""
        return cls((cpu, cpu), (gpu, gpu), (dram, dram))

    @property
    def low(self) -> float:
        """The least total that the text allows, in kJ."""
        return self.cpu[0] + self.gpu[0] + (self.dram[0] if self.dram else 0.0)

    @property
    def high(self) -> float:
        """The greatest total that the text allows, in kJ, over the domains it names."""
        return self.cpu[1] + self.gpu[1] + (self.dram[1] if self.dram else 0.0)

    @property
    def exact(self) -> bool:
        """Whether every domain that is named has one value."""
        return self.low == self.high


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper in numbers; the paper's own loader stands under streaming."""

    name: str
    """As the paper counts it: "figure 5"."""
    section: str
    conditions: str
    workload: str = "resnet50"
    """The workload that the values are of."""
    samples: int | None = None
    """Samples of an epoch; None where the paper does not say."""
    epoch_s: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    """Seconds per epoch by loader and RTT in ms, 0 being local disk; empty where the text gives none."""
    energy_kj: Mapping[str, Mapping[float, EnergyRange]] = field(default_factory=dict)
    """Energy per epoch by loader and RTT in ms, as far as the text gives it; the rest is in the plot alone."""

    @property
    def citation(self) -> str:
        """Where the values stand."""
        return f"{_AUTHORS}, {self.section} and {self.name}"

    @property
    def rtt_ms(self) -> tuple[float, ...]:
        """Round-trip times of the values in ms; 0 is local disk."""
        return tuple(dict.fromkeys(rtt for values in self.epoch_s.values() for rtt in values))

    def matching_rtt_ms(self, rtt_ms: float, *, local: bool, disturbed: bool = False) -> float | None:
        """Return the paper's regime that equals ours, within 5 % of the RTT; None when it has none.

        The papers' links have neither loss nor jitter, so no regime of theirs equals a disturbed one.
        """
        if disturbed:
            return None
        if local:
            return 0.0 if 0.0 in self.rtt_ms else None
        return next((known for known in self.rtt_ms if known and abs(rtt_ms - known) <= 0.05 * known), None)

    def seconds(self, loader: str, rtt_ms: float | None) -> float | None:
        """Return the seconds of an epoch; None where the text gives none."""
        return None if rtt_ms is None else self.epoch_s.get(loader, {}).get(rtt_ms)


_ANY_LOADER_LOCAL = EnergyRange(cpu=(9.5, 12.0), gpu=(26.2, 27.3), dram=(0.0, 1.3))

FIG5 = PaperFigure(
    name="figure 5",
    section="section 5.1",
    conditions=f"10 GB of ImageNet, {_GPU}",
    samples=100_000,  # 10 GB at 0.1 MB a sample
    epoch_s={
        "pytorch": {0.0: 172.4, 0.1: 175.5, 10.0: 1202.2, 30.0: 4232.4},
        "dali": {0.0: 151.7, 0.1: 165.4, 10.0: 552.5, 30.0: 1699.3},
        "streaming": {0.0: 157.1, 0.1: 156.6, 10.0: 156.5, 30.0: 156.2},
    },
    energy_kj={
        "pytorch": {0.0: _ANY_LOADER_LOCAL},
        "dali": {0.0: _ANY_LOADER_LOCAL},
        "streaming": {
            0.0: _ANY_LOADER_LOCAL,
            0.1: EnergyRange(cpu=(10.1, 10.1), gpu=(26.3, 26.3)),
            10.0: EnergyRange(cpu=(9.9, 9.9), gpu=(25.9, 25.9)),
            30.0: EnergyRange(cpu=(10.0, 10.0), gpu=(26.2, 26.2)),
        },
    },
)

FIG7 = PaperFigure(name="figure 7", section="section 5.1", conditions=f"2 MB synthetic samples, one stream, {_GPU}")
"""Its values are in the plot alone."""

FIG8 = PaperFigure(name="figure 8", section="section 5.1", conditions=f"2 MB synthetic samples, two streams, {_GPU}")
"""Its values are in the plot alone."""

FIG9 = PaperFigure(
    name="figure 9",
    section="section 5.1",
    conditions=f"10 GB of ImageNet, {_GPU}",
    workload="vgg19",
    samples=100_000,  # 10 GB at 0.1 MB a sample
    epoch_s={
        "dali": {0.1: 142.6, 10.0: 660.9, 30.0: 2096.8},
        "streaming": {0.1: 141.1, 10.0: 140.0, 30.0: 140.5},
    },
    energy_kj={
        "dali": {
            0.1: EnergyRange.exactly(cpu=19.9, dram=1.7, gpu=34.6),
            10.0: EnergyRange.exactly(cpu=56.1, dram=4.7, gpu=78.0),
            30.0: EnergyRange.exactly(cpu=156.3, dram=11.8, gpu=163.6),
        },
        "streaming": {
            0.1: EnergyRange.exactly(cpu=20.0, dram=1.6, gpu=34.5),
            10.0: EnergyRange.exactly(cpu=19.8, dram=1.6, gpu=34.2),
            30.0: EnergyRange.exactly(cpu=20.3, dram=1.6, gpu=34.4),
        },
    },
)

FIG10 = PaperFigure(
    name="figure 10",
    section="section 5.2",
    conditions="ImageNet, half of it local",
    epoch_s={
        "dali": {0.1: 230.9, 10.0: 1422.5, 30.0: 4154.7},
        "streaming": {0.1: 222.5, 10.0: 221.6, 30.0: 221.8},
    },
    energy_kj={
        "dali": {
            0.1: EnergyRange.exactly(cpu=22.2, dram=2.08, gpu=43.8),
            10.0: EnergyRange.exactly(cpu=60.7, dram=5.03, gpu=90.8),
            30.0: EnergyRange.exactly(cpu=180.0, dram=14.2, gpu=235.0),
        },
        "streaming": {
            0.1: EnergyRange.exactly(cpu=19.7, dram=2.03, gpu=41.7),
            10.0: EnergyRange.exactly(cpu=52.5, dram=4.96, gpu=72.0),
            30.0: EnergyRange.exactly(cpu=106.0, dram=9.01, gpu=126.0),
        },
    },
)


def figure_of(results: Results) -> PaperFigure:
    """Return the paper's figure that asks what a run asks, from where its data lies, its samples and its model."""
    if results.placement == "half":
        return FIG10
    dataset: Mapping[str, Any] = results.config.get("dataset") or {}
    if str(dataset.get("_target_", "")).endswith(".Synthetic"):
        loaders: Mapping[str, Any] = results.config.get("loaders") or {}
        streaming = loaders.get(results.streaming or "") or {}
        return FIG7 if streaming.get("streams") == 1 else FIG8
    vgg19 = FIG9.workload in results.workloads and FIG5.workload not in results.workloads
    return FIG9 if vgg19 else FIG5
