"""LightStep and HeavyStep: transforms that take a given time and change nothing.

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
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Literal, get_args

from loaders.pipeline import Item

Passing = Literal["sleep", "spin"]
"""How a step passes its time."""

_CHUNK: Final = bytes(64 * 1024)
"""Hashed at once, in some 50 us."""
_FINEST_SHARE: Final = 1_000_000


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
