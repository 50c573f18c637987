"""Whether two arms that share their seeds differ by more than noise: the paired t-interval (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.report.intervals import student_quantile


@dataclass(frozen=True, slots=True)
class Paired:
    """The difference of two arms over the seeds that both have."""

    pairs: int
    first_mean: float
    first_std: float
    """Deviation of the sample, with n - 1."""
    difference: float
    """Mean of second − first."""
    half_width: float
    """Of the difference's 95 % interval."""

    @property
    def within_noise(self) -> bool:
        """Whether the interval of the difference holds 0."""
        return abs(self.difference) <= self.half_width


def compare_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """Return the difference of two arms by seed; None where fewer than two seeds are in both."""
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return None
    before = [first[seed] for seed in seeds]
    differences = [second[seed] - first[seed] for seed in seeds]
    half_width = student_quantile(0.975, len(seeds) - 1) * stdev(differences) / math.sqrt(len(seeds))
    return Paired(len(seeds), fmean(before), stdev(before), fmean(differences), half_width)
