"""Fields of noise whose spectrum falls as that of photographs does: amplitude proportional to 1 / frequency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Field", "Textures", "smooth_noise"]

Field = npt.NDArray[np.float32]

_EDGE: Final = 256
_EXPONENTS: Final = (0.7, 1.0, 1.4)
"""Fine grain such as sand, the average of natural images (Field, JOSA A 4(12), 1987), and soft cloud."""


@dataclass(frozen=True, slots=True)
class Textures:
    """A few large periodic fields; patches of them are what every picture's surfaces are made of."""

    fields: tuple[Field, ...]
    """Square, zero mean, unit deviation; from fine to soft."""

    @classmethod
    def make(cls, seed: int) -> Textures:
        """Make the fields of a dataset; the same for the same seed."""
        rng = np.random.default_rng([seed, 0x7E])
        return cls(tuple(smooth_noise(rng, _EDGE, exponent) for exponent in _EXPONENTS))

    def patch(self, rng: np.random.Generator, kind: int, height: int, width: int) -> Field:
        """Cut a patch at random, mirrored or turned at random; float32 of shape (height, width)."""
        field = self.fields[kind]
        turned, flip_y, flip_x = (bool(bit) for bit in rng.integers(0, 2, 3))
        if turned:
            field = field.T
        field = field[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
        if height <= _EDGE and width <= _EDGE:
            y, x = int(rng.integers(0, _EDGE - height + 1)), int(rng.integers(0, _EDGE - width + 1))
            return field[y : y + height, x : x + width]
        y, x = (int(start) for start in rng.integers(0, _EDGE, 2))
        rows = field[np.arange(y, y + height) % _EDGE]
        return np.tile(rows, (1, -(-(x + width) // _EDGE)))[:, x : x + width]


def smooth_noise(rng: np.random.Generator, edge: int, exponent: float) -> Field:
    """Return a periodic square field with amplitude 1 / frequency ** exponent, zero mean and unit deviation."""
    spectrum = np.fft.rfft2(rng.standard_normal((edge, edge), dtype=np.float32))
    frequency = np.hypot(np.fft.fftfreq(edge)[:, None], np.fft.rfftfreq(edge)[None, :])
    frequency[0, 0] = np.inf
    field: Field = np.fft.irfft2(spectrum / frequency**exponent, s=(edge, edge)).astype(np.float32)
    field /= field.std()
    return field
