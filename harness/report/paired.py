"""Whether two arms that share their seeds differ by more than noise: the paired t-interval (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

_T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""97.5 % quantiles of Student's t with 1 to 20 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""


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
    # Above the table the last entry is a little too wide, so no difference is found that is not there.
    t = _T_975[min(len(seeds) - 1, len(_T_975)) - 1]
    half_width = t * stdev(differences) / math.sqrt(len(seeds))
    return Paired(len(seeds), fmean(before), stdev(before), fmean(differences), half_width)
