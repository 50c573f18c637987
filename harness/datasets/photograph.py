"""Pictures as a camera takes them: a ground with things on it, now and then under a sky."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from PIL import Image

from harness.datasets.collage import Sheets, lay, tinted
from harness.datasets.shapes import leaf_outlines, leaf_radii, ridge_outline
from harness.datasets.style import Style

__all__ = ["photograph"]

_THINGS: Final = 7
"""Laid on a sheet, which has its own, in a picture of the usual crowding."""
_CHROMA: Final = 32
"""Levels of Cb and Cr by which a class's own hue stands out."""
_SKY: Final = (45, 24, -12)
"""Levels of Y, Cb and Cr by which a sky differs from the ground."""


def photograph(rng: np.random.Generator, style: Style, cut: Sheets, *, width: int, height: int) -> Image.Image:
    """Compose one picture, in YCbCr; width and height in pixels."""
    side = min(width, height)
    picture = tinted(_patch(rng, cut, width, height), 0, *_chroma(rng, style, _CHROMA // 2))
    top = 0.0
    if style.horizon is not None:
        top = height * float(np.clip(style.horizon + rng.normal(0, 0.06), 0.15, 0.6))
        above = ridge_outline(rng, width, height, top)
        above[-2:, 1] = 0.0  # its last two corners are the ground's
        lay(picture, above, tinted(_patch(rng, cut, width, math.ceil(above[:, 1].max()) + 1), *_SKY), (0, 0))
    count = int(np.clip(rng.normal(_THINGS, 3) * style.crowding, 3, 40))
    radius = -np.sort(-side * leaf_radii(rng, count))
    # On the ground, what is lower in the picture is nearer, and in front.
    x, y = rng.uniform(0, width, count), np.sort(rng.uniform(top, height, count))
    for outline in leaf_outlines(rng, style.roundness, x, y, radius):
        (left, upper), (right, lower) = outline.min(0), outline.max(0)
        left, upper = max(0, math.floor(left)), max(0, math.floor(upper))
        wide, high = min(width, math.ceil(right) + 1) - left, min(height, math.ceil(lower) + 1) - upper
        if wide > 0 and high > 0:
            light = int(rng.integers(-40, 41))
            patch = tinted(_patch(rng, cut, wide, high), light, *_chroma(rng, style, _CHROMA))
            lay(picture, outline, patch, (left, upper))
    return picture


def _patch(rng: np.random.Generator, cut: Sheets, width: int, height: int) -> Image.Image:
    return cut.patch(rng, int(rng.integers(0, 1 << 16)), width, height)


def _chroma(rng: np.random.Generator, style: Style, strength: float) -> tuple[int, int]:
    """Return levels of Cb and Cr of about the class's hue."""
    turn = math.tau * (style.hue + float(rng.normal(0.0, style.spread)))
    return round(strength * math.cos(turn)), round(strength * math.sin(turn))
