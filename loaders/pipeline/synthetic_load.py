"""LightStep, HeavyStep and ReplayStep: transforms that take a given time and change nothing.

The times of the MinatoLoader paper (table 1) are those that one worker spends on one sample, measured with 12 workers
on 128 cores (sections 3 and 5.1): no worker ever waited for a core, so sleeping and computing took the same time.
`sleep` keeps that on a machine with fewer cores than workers, and so is taken for what the paper's figures mean, which
does not say: a step lasts its given time, however many are under way. `spin` burns as much time of a core:
it lasts longer when workers share cores, and it costs the joules that a real transform would.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar, get_args

from loaders.pipeline import Item

Passing = Literal["sleep", "spin"]
"""How a step passes its time."""

_CHUNK: Final = bytes(64 * 1024)
"""Hashed at once, in some 50 us."""
_FINEST_SHARE: Final = 1_000_000
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""The multiples of this number, modulo 1, lie as evenly in 0 to 1 as those of any number can."""
_TAILS: Final = tuple(1.02**power for power in range(300))
"""Exponents that are tried for the times above the 90th percentile: 1 to 373."""
_MOST_OFF: Final = 0.02
"""Largest relative error of a standard deviation that is taken for the published one."""

S = TypeVar("S", bound="LightStep")


@dataclass(frozen=True, slots=True)
class LightStep:
    """Takes the same time for every sample: 0.5 s stand for volume normalisation and the like (section 2.2)."""

    seconds: float = 0.5
    time_scale: float = 1.0
    """Factor on the time."""
    passing: Passing = "sleep"
    name: str = "LightStep"
    only_waits: ClassVar[bool] = True
    """Whether the step changes nothing of a sample, so that a check of a sample leaves it out."""

    def __post_init__(self) -> None:
        for key, value in (("seconds", self.seconds), ("time_scale", self.time_scale)):
            if not _is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"{self.name}.{key}={value!r}: expected a number that is 0 or more")
        if self.passing not in get_args(Passing):
            expected = ", ".join(get_args(Passing))
            raise ValueError(f"{self.name}.passing={self.passing!r}: expected one of {expected}")

    def seconds_for(self, sample_id: int) -> float:
        """Return how long the step takes for a sample, in seconds."""
        return self.seconds * self.time_scale

    def __call__(self, item: Item) -> Item:
        """Return the item as it is, after the time has passed."""
        pass_time(self.seconds_for(item.id), self.passing)
        return item


@dataclass(frozen=True, slots=True)
class HeavyStep(LightStep):
    """Takes time for some samples only: 3 s or 10 s for every fifth, such as long-context filters (section 2.2).

    Which samples these are depends on their ids alone, so they are the same in every epoch and for every loader:
    of the first n ids, floor(n * share) are heavy, and they lie as evenly as can be.
    """

    seconds: float = 3.0
    name: str = "HeavyStep"
    share: float = 0.2
    """Of the samples, 0 to 1; section 5.6 varies it."""

    def __post_init__(self) -> None:
        LightStep.__post_init__(self)
        if not _is_number(self.share) or not 0 <= self.share <= 1:
            raise ValueError(f"HeavyStep.share={self.share!r}: expected 0 to 1")

    def is_heavy(self, sample_id: int) -> bool:
        """Return whether a sample is one of those that take time."""
        # In whole numbers: 0.29 * 100 is less than 29 in floating point.
        share = Fraction(self.share).limit_denominator(_FINEST_SHARE)
        part, whole = share.numerator, share.denominator
        return (sample_id + 1) * part // whole > sample_id * part // whole

    def seconds_for(self, sample_id: int) -> float:
        """Return how long the step takes for a sample, in seconds."""
        return self.seconds * self.time_scale if self.is_heavy(sample_id) else 0.0


class Piece(NamedTuple):
    """A part of a quantile function, a power function of the share of samples."""

    start: float
    end: float
    """Share of samples, 0 to 1; less than `start` where the part is given from its right end on."""
    first: float
    """Time at `start`."""
    last: float
    """Time at `end`."""
    exponent: float = 1.0

    def value(self, share: float) -> float:
        """Return the time that a share of samples does not exceed."""
        risen: float = ((share - self.start) / (self.end - self.start)) ** self.exponent
        return self.first + (self.last - self.first) * risen

    def moments(self) -> tuple[float, float]:
        """Return what the part adds to the mean of all samples, and to the mean of the squares."""
        width, rise, power = abs(self.end - self.start), self.last - self.first, self.exponent
        mean = self.first + rise / (power + 1)
        square = self.first**2 + 2 * self.first * rise / (power + 1) + rise**2 / (2 * power + 1)
        return width * mean, width * square


def fit_times(
    *, low: float, median: float, p75: float, p90: float, high: float, mean: float, std: float
) -> tuple[Piece, ...]:
    """Return the quantile function of times of which a table publishes these values, all in one unit.

    The function passes through the minimum, the median, the 75th and the 90th percentile and the maximum. Between the
    median and the 90th percentile it is linear. Below the median and above the 90th percentile it is a power function,
    whose exponents are such that the mean is the published one and the standard deviation within 2 % of it. Raises
    ValueError where there are no such exponents, as for times of two kinds, and for values that are not in order.
    """
    if not 0 <= low < median <= p75 <= p90 < high:
        raise ValueError(f"expected 0 <= low < median <= p75 <= p90 < high, got {low}, {median}, {p75}, {p90}, {high}")
    best: tuple[Piece, ...] = ()
    least_off = _MOST_OFF * std
    for tail in _TAILS:
        upper = (Piece(0.5, 0.75, median, p75), Piece(0.75, 0.9, p75, p90), Piece(0.9, 1.0, p90, high, tail))
        # The lower half has to make up the rest of the mean: (median - (median - low) / (exponent + 1)) / 2.
        below = median - 2 * (mean - sum(piece.moments()[0] for piece in upper))
        if not 0 < below <= median - low:
            continue
        pieces = (Piece(0.5, 0.0, median, low, (median - low) / below - 1), *upper)
        off = abs(math.sqrt(sum(piece.moments()[1] for piece in pieces) - mean**2) - std)
        if off <= least_off:
            best, least_off = pieces, off
    if not best:
        raise ValueError(f"no times with these percentiles have a mean of {mean} and a standard deviation of {std}")
    return best


@dataclass(frozen=True, slots=True)
class ReplayStep(LightStep):
    """Takes the time that a quantile function has for a sample, in its unit times `seconds`.

    The share at which a sample stands depends on its id and the seed alone, so a sample takes the same time in every
    epoch and through every loader. Shares of consecutive ids lie as evenly as can be, so that few samples have the
    distribution of all.
    """

    seconds: float = 1e-3
    name: str = "ReplayStep"
    times: tuple[Piece, ...] = ()
    """The quantile function, such as `fit_times` returns."""
    seed: int = 0

    def seconds_for(self, sample_id: int) -> float:
        """Return how long the step takes for a sample, in seconds."""
        share = (0.5 + self.seed * math.sqrt(2) + sample_id * _GOLDEN) % 1.0
        piece = next(piece for piece in self.times if share <= max(piece.start, piece.end))
        return piece.value(share) * self.seconds * self.time_scale


def split(steps: Sequence[S], parts: int) -> tuple[S, ...]:
    """Return each step as several of the same part of its time, between which a loader can set a sample aside."""
    return tuple(
        replace(step, time_scale=step.time_scale / parts, name=f"{step.name}{part}")
        for step in steps
        for part in range(1, parts + 1)
    )


def pass_time(seconds: float, passing: Passing) -> None:
    """Sleep so many seconds, or keep a core busy for as many seconds of its time."""
    if passing == "sleep":
        if seconds > 0:
            time.sleep(seconds)
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        hashlib.sha256(_CHUNK)  # lets other threads of this process run meanwhile, as NumPy and torch do


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
