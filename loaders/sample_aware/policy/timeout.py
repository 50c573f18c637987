"""Which samples are slow: a timeout on preprocessing that is profiled first and then kept up with the workload (pure).

After MinatoLoader, section 4.2: the 75th percentile of the total preprocessing times, the 90th where that calls too
many samples slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_USUAL: Final = 75
_SKEWED: Final = 90
_SOON: Final = 1.5
"""A sample that is done within so many timeouts was called slow for nothing: setting it aside gains no time."""
_MAX_WRONG: Final = 0.15
"""Share of samples called slow for nothing at the 75th percentile from which the 90th is taken."""
_MIN_WRONG: Final = 0.10
"""Share below which the 75th is taken again."""
_WORTH_TELLING: Final = 0.05
"""Relative change of the timeout below which the history has no new line."""


@dataclass(frozen=True, slots=True)
class TimeoutChange:
    """One line of a timeout's history."""

    samples: int
    """Samples that were measured by then."""
    timeout_s: float
    percentile: int | None
    """Of the total preprocessing times; None where the timeout is a fixed one."""
    slow_share: float
    """Of the samples in the window, those above the new timeout."""
    reason: str


class SlowTimeout:
    """Decides from total preprocessing times, in seconds, above which a sample is slow."""

    def __init__(self, *, warm_up: int = 32, window: int = 1000, every: int = 50, fixed_s: float | None = None) -> None:
        """Profile `warm_up` samples, none of which is slow, then adjust every `every` samples to the last `window`.

        `fixed_s` sets the timeout for good.
        """
        self._warm_up, self._every, self._fixed_s = warm_up, every, fixed_s
        self._window = max(window, warm_up)
        self._last: npt.NDArray[np.float64] = np.empty(0)
        self._added: list[float] = []
        """Since the last adjustment."""
        self._samples = 0
        self._percentile = _USUAL
        self.timeout_s: float | None = fixed_s
        """None while the warm-up lasts."""
        self.history: list[TimeoutChange] = []
        if fixed_s is not None:
            self.history.append(TimeoutChange(0, fixed_s, None, 0.0, "fixed"))

    def add(self, seconds: Sequence[float]) -> bool:
        """Add what samples took, waits not counted; return whether the timeout has changed."""
        before, self._samples = self._samples, self._samples + len(seconds)
        if self._fixed_s is not None:
            return False
        self._added += seconds
        if self._rounds(before) == self._rounds(self._samples):
            return False
        return self._adjust()

    def _rounds(self, samples: int) -> int:
        """Return how often the timeout is adjusted until so many samples were measured."""
        return 0 if samples < self._warm_up else 1 + (samples - self._warm_up) // self._every

    def _adjust(self) -> bool:
        # Sorted once, for NumPy's percentile takes ten times as long.
        self._last = np.concatenate((self._last, self._added))[-self._window :]
        self._added = []
        times = np.sort(self._last)
        usual_s, skewed_s = _percentile(times, _USUAL), _percentile(times, _SKEWED)
        wrong = (_above(times, usual_s) - _above(times, _SOON * usual_s)) / len(times)
        before, old_s = self._percentile, self.timeout_s
        if wrong > _MAX_WRONG:
            self._percentile = _SKEWED
        elif wrong < _MIN_WRONG:
            self._percentile = _USUAL
        new_s = skewed_s if self._percentile == _SKEWED else usual_s
        self.timeout_s = new_s
        if old_s is None:
            reason = "profiled"
        elif before != self._percentile:
            reason = f"{wrong:.0%} of the samples were called slow for nothing" if wrong > _MAX_WRONG else "spread out"
        elif abs(new_s - old_s) > _WORTH_TELLING * old_s:
            reason = "times have changed"
        else:
            return new_s != old_s
        share = _above(times, new_s) / len(times)
        self.history.append(TimeoutChange(self._samples, new_s, self._percentile, share, reason))
        return True


def _percentile(ordered: npt.NDArray[np.float64], percent: int) -> float:
    """Return a percentile, between the two nearest values in proportion, as NumPy's."""
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    below, above = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)])
    return below + (above - below) * (at - low)


def _above(ordered: npt.NDArray[np.float64], limit: float) -> int:
    """Return how many values are above a limit."""
    return len(ordered) - int(np.searchsorted(ordered, limit, "right"))
