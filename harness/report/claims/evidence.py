"""What claims are judged on: medians of valid rows, looked up by loader and RTT."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from harness.report.folder import Results
from harness.report.labels import rtt, spell
from harness.report.published import PaperFigure
from harness.report.summary import Group, find

__all__ = ["CannotJudge", "Evidence", "Finding", "Question"]


class CannotJudge(Exception):
    """What a claim needs is not in the folder; the message says what."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a folder says to a question."""

    actual: str
    holds: bool
    why: str = ""
    """What, in the figures themselves, makes the difference to the paper."""


@dataclass(frozen=True, slots=True)
class Question:
    """A claim, and how a folder answers it."""

    claim: str
    expected: str
    tolerance: str
    answer: Callable[[Evidence], Finding]
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The groups of the claimed workload."""

    results: Results
    groups: tuple[Group, ...]
    paper: PaperFigure

    def regime(self, low_ms: float, high_ms: float) -> str:
        """Return the farthest regime with an RTT within the bounds; 0 to 0 is local."""
        local = high_ms == 0
        found = [
            key
            for key in self.results.regimes
            if self.results.is_local(key) == local and low_ms <= self.results.rtt_ms(key) <= high_ms
        ]
        if not found:
            raise CannotJudge("no local regime" if local else f"no regime of {rtt((low_ms + high_ms) / 2)}")
        return found[-1]

    def at(self, rtt_ms: float) -> str:
        """Return the regime of a round trip, which the probe may find a little longer."""
        slack = max(0.05, 0.05 * rtt_ms)
        return self.regime(round(rtt_ms - slack, 6), round(rtt_ms + slack, 6))

    def between(self, near_ms: float, far_ms: float) -> list[str]:
        """Return the regimes from the one of `near_ms` to the one of `far_ms`; both must be there."""
        near, far = self.at(near_ms), self.at(far_ms)
        low, high = (self.results.rtt_ms(key) for key in (near, far))
        return [
            key
            for key in self.results.regimes
            if not self.results.is_local(key) and low <= self.results.rtt_ms(key) <= high
        ]

    def group(self, loader: str | None, regime: str) -> Group:
        """Return a group that holds valid rows."""
        if loader is None:
            raise CannotJudge("no streaming loader")
        group = find(self.groups, self.paper.workload, regime, loader)
        if group is None or not group.trusted:
            raise CannotJudge(f"no valid row of {spell(loader)} in regime {regime}")
        return group

    def time_s(self, loader: str | None, regime: str) -> float:
        """Return the median epoch time in s of valid rows."""
        stat = self.group(loader, regime).time_s
        if stat is None:
            raise CannotJudge(f"no epoch time of {loader} in regime {regime}")
        return stat.median

    def joules(self, loader: str | None, regime: str) -> float:
        """Return the median joules per epoch of valid rows, measured ones only."""
        group = self.group(loader, regime)
        if self.results.emulated:
            raise CannotJudge("the accelerator is emulated")
        if group.estimated:
            raise CannotJudge(f"the joules of {'/'.join(sorted(group.estimated))} are an estimate")
        if group.total_j is None or not {"cpu", "gpu"} <= group.domain_j.keys():
            raise CannotJudge(f"no joules of CPU and GPU for {spell(group.loader)} in regime {regime}")
        return group.total_j.median

    def per_sample(self, points: Iterable[tuple[float, str, str]]) -> str:
        """Tell the time per sample behind a factor, here and in the paper, by (RTT, paper's loader, our loader)."""
        here, paper = [], []
        for rtt_ms, name, loader in points:
            regime = self.at(rtt_ms)
            samples = [row.samples for row in self.group(loader, regime).rows if row.samples]
            theirs = self.paper.seconds(name, rtt_ms)
            if not samples or theirs is None or self.paper.samples is None:
                return ""
            label = f"{spell(loader)} at {rtt(rtt_ms)}"
            here.append(f"{label} {1e3 * self.time_s(loader, regime) / median(samples):.2g} ms")
            paper.append(f"{1e3 * theirs / self.paper.samples:.2g} ms")
        return f"per sample, {', '.join(here)}; the paper's epochs come to {' and '.join(paper)}"
