"""Draws whose distribution is right for any number of them, as sizes of samples are drawn."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["normal_deviates", "quantiles"]

_EDGE: Final = 1e-9
"""Of probability, at which the normal distribution is cut off."""


def quantiles(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Draw one from each of `count` equally likely parts of a distribution, in random order; shape (count,), 0 to 1.

    Independent draws would have a mean that strays by several per cent.
    """
    drawn: npt.NDArray[np.float64] = (rng.permutation(count) + rng.random(count)) / count
    return drawn


def normal_deviates(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return such draws from the standard normal distribution, shape (count,)."""
    standard = NormalDist()
    return np.array([standard.inv_cdf(min(max(float(q), _EDGE), 1 - _EDGE)) for q in quantiles(rng, count)])
