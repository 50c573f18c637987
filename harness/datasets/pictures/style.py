"""What the pictures of one class have in common: colours, shapes, place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from harness.datasets.pictures.texture import Field

__all__ = ["Style"]

_Array = npt.NDArray[np.float64]

_HUES: Final = (0.04, 0.08, 0.11, 0.16, 0.25, 0.32, 0.55, 0.60)
"""Hues that photographs mostly have: skin, wood, earth, straw, grass, leaves, water, sky."""


@dataclass(frozen=True, slots=True)
class Style:
    """The look of a class."""

    hue: float
    """Dominant hue, 0 to 1."""
    spread: float
    """Deviation of hues from the dominant one."""
    roundness: float
    """Share of shapes that are rounded; the rest have corners."""
    crowding: float
    """Number of shapes, relative to the usual."""
    horizon: float | None
    """Height of the horizon as a share of the picture's, from the top; None for close-ups."""
    kind: int
    """Texture of most surfaces, 0 (fine) to 2 (soft)."""

    @classmethod
    def of_class(cls, seed: int, label: int) -> Style:
        """Draw the style of a class; the same for the same seed and label."""
        rng = np.random.default_rng([seed, 0x57, label])
        return cls(
            hue=float((rng.choice(_HUES) + rng.normal(0, 0.02)) % 1.0),
            spread=float(rng.uniform(0.02, 0.10)),
            roundness=float(rng.choice([0.25, 0.7, 1.0])),
            crowding=float(rng.uniform(0.6, 1.7)),
            horizon=float(rng.uniform(0.25, 0.65)) if rng.random() < 0.5 else None,
            kind=int(rng.integers(0, 3)),
        )

    def palette(self, rng: np.random.Generator, count: int) -> Field:
        """Draw colours, float32 of shape (count, 3) in levels of 0 to 255: most muted, a few vivid."""
        hue = (self.hue + rng.normal(0.0, self.spread, count)) % 1.0
        vivid = rng.random(count) < 0.06
        saturation = np.clip(rng.beta(1.8, 4.0, count) + vivid * 0.4, 0.0, 0.95)
        value = np.clip(rng.beta(3.0, 2.4, count), 0.12, 0.97)
        return _rgb(hue, saturation, value)


def _rgb(hue: _Array, saturation: _Array, value: _Array) -> Field:
    turn = (hue[:, None] * 6.0 + np.array([5.0, 3.0, 1.0])) % 6.0
    share = np.clip(np.minimum(turn, 4.0 - turn), 0.0, 1.0)
    levels: _Array = 255.0 * value[:, None] * (1.0 - saturation[:, None] * share)
    return levels.astype(np.float32)
