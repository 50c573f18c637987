"""Pictures as a camera takes them: a ground with things on it, now and then under a sky."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from PIL import Image

from harness.datasets.pictures.collage import Sheets, lay, tinted
from harness.datasets.pictures.shapes import leaf_outlines, leaf_radii, ridge_outline
from harness.datasets.pictures.style import Style

__all__ = ["photograph"]

_THINGS: Final = 5
"""Laid on a sheet, which has its own, in a picture of the usual crowding."""
_CHROMA: Final = 32
"""Levels of Cb and Cr by which a class's own hue stands out."""
_SKY: Final = (45, 24, -12)
"""Levels of Y, Cb and Cr by which a sky differs from the ground."""


def photograph(rng: np.random.Generator, style: Style, cut: Sheets, *, width: int, height: int) -> Image.Image:
    """Compose one picture, in YCbCr; width and height in pixels."""
    side = min(width, height)
    count = int(np.clip(rng.normal(_THINGS, 3) * style.crowding, 3, 40))
    *where, ground, sky = map(tuple, rng.integers(0, 1 << 31, (count + 2, 3)).tolist())
    *hues, ground_hue = (math.tau * (style.hue + rng.normal(0.0, style.spread, count + 1))).tolist()
    picture = tinted(_patch(cut, ground, width, height), 0, *_chroma(ground_hue, _CHROMA // 2))
    top = 0.0
    if style.horizon is not None:
        top = height * float(np.clip(style.horizon + rng.normal(0, 0.06), 0.15, 0.6))
        above = ridge_outline(rng, width, height, top)
        above[-2:, 1] = 0.0  # its last two corners are the ground's
        lay(picture, above, tinted(_patch(cut, sky, width, math.ceil(above[:, 1].max()) + 1), *_SKY), (0, 0))
    radius = -np.sort(-side * leaf_radii(rng, count))
    # On the ground, what is lower in the picture is nearer, and in front.
    x, y = rng.uniform(0, width, count), np.sort(rng.uniform(top, height, count))
    outlines = leaf_outlines(rng, style.roundness, x, y, radius)
    lights = rng.integers(-40, 41, count).tolist()
    firsts = np.maximum(np.floor(outlines.min(1)), 0).astype(int).tolist()
    lasts = np.minimum(np.ceil(outlines.max(1)) + 1, (width, height)).astype(int).tolist()
    for outline, (left, upper), (right, lower), place, light, hue in zip(
        outlines, firsts, lasts, where, lights, hues, strict=True
    ):
        if right > left and lower > upper:
            patch = tinted(_patch(cut, place, right - left, lower - upper), light, *_chroma(hue, _CHROMA))
            lay(picture, outline, patch, (left, upper))
    return picture


def _patch(cut: Sheets, place: tuple[int, int, int], width: int, height: int) -> Image.Image:
    number, x, y = place
    return cut.patch(number, (x, y), width, height)


def _chroma(hue: float, strength: float) -> tuple[int, int]:
    """Return levels of Cb and Cr of a hue, an angle."""
    return round(strength * math.cos(hue)), round(strength * math.sin(hue))
