"""Random draws of which generated datasets are made: sizes with a distribution that is right for any number of them."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Field", "normal_deviates", "quantiles", "smooth_noise"]

Field = npt.NDArray[np.float32]

_EDGE: Final = 1e-9
"""Probability at which the normal distribution is cut off."""


def quantiles(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Draw one value from each of `count` equally likely parts of 0 to 1, in random order; shape (count,).

    Independent draws would have a mean that is wrong by several per cent.
    """
    drawn: npt.NDArray[np.float64] = (rng.permutation(count) + rng.random(count)) / count
    return drawn


def normal_deviates(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Draw values of the standard normal distribution in the same way; shape (count,)."""
    standard = NormalDist()
    return np.array([standard.inv_cdf(min(max(float(q), _EDGE), 1 - _EDGE)) for q in quantiles(rng, count)])


def smooth_noise(rng: np.random.Generator, edge: int, exponent: float) -> Field:
    """Return a periodic square field with amplitude 1 / frequency ** exponent, zero mean and unit deviation.

    Natural images have an exponent of about 1 (Field, JOSA A 4(12), 1987).
    """
    spectrum = np.fft.rfft2(rng.standard_normal((edge, edge), dtype=np.float32))
    frequency = np.hypot(np.fft.fftfreq(edge)[:, None], np.fft.rfftfreq(edge)[None, :])
    frequency[0, 0] = np.inf
    field: Field = np.fft.irfft2(spectrum / frequency**exponent, s=(edge, edge)).astype(np.float32)
    field /= field.std()
    return field
