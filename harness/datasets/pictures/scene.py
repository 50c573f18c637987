"""Pictures that are made up: occluding, lit and textured surfaces, near and far, seen through a lens.

Surfaces that occlude one another, their sizes drawn from a power law, are the dead-leaves model of natural images
(Lee, Mumford and Huang, International Journal of Computer Vision 41, 2001): it gives the edges, the scale
invariance and the 1 / frequency spectrum of photographs, which is what a JPEG codec spends its time and bytes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from harness.datasets.pictures.shapes import leaf_outlines, leaf_radii
from harness.datasets.pictures.style import Style
from harness.datasets.pictures.texture import Field, Textures

__all__ = ["paint"]

Pixels = npt.NDArray[np.uint8]

_LAYERS: Final = 256
"""Surfaces are numbered in one byte; 0 is the backdrop."""


@dataclass(frozen=True, slots=True)
class _Surfaces:
    """Geometry of a picture: what is seen at each pixel."""

    colours: Pixels
    """Colour before light and texture, (height, width, 4); the fourth is unused."""
    index: Pixels
    """Surface, (height, width)."""
    shadows: Pixels
    """Depth of the shadows that surfaces throw on those behind, (height, width)."""
    centres: npt.NDArray[np.float32]
    """x, y and 1 / radius of each surface in pixels, (3, 256); flat ones have 1 / radius 0."""


def paint(
    rng: np.random.Generator, style: Style, textures: Textures, *, width: int, height: int, detail: float
) -> Image.Image:
    """Paint one picture, in RGB.

    `detail` is the contrast of fine texture, about 1 for a photograph: the more, the larger its JPEG.
    """
    surfaces = _arrange(rng, style, width, height)
    gain = _light(rng, width, height)
    gain += _rounding(rng, surfaces)
    gain -= surfaces.shadows
    gain += _relief(rng, style, textures, surfaces.index, detail)
    gain *= np.float32(1 / 128)
    gain += np.float32(1.0)
    # Light that comes from everywhere keeps the dark parts from being black and smooth.
    haze = textures.patch(rng, 1, height, width) * np.float32(rng.uniform(1.5, 4.0) * detail)
    haze += np.float32(rng.uniform(4.0, 16.0))
    tint = textures.patch(rng, 2, height, width) * np.float32(rng.uniform(1.0, 4.0))
    planes = []
    for channel, sign in enumerate((1, 0, -1)):
        plane = surfaces.colours[..., channel] * gain
        plane += haze
        if sign:
            plane += tint * np.float32(sign)
        np.clip(plane, 0.0, 255.0, out=plane)
        planes.append(Image.fromarray(plane.astype(np.uint8)))
    return Image.merge("RGB", planes)


def _arrange(rng: np.random.Generator, style: Style, width: int, height: int) -> _Surfaces:
    """Lay the surfaces out from back to front."""
    side = min(width, height)
    palette = style.palette(rng, _LAYERS)
    outlines, circles = _outlines(rng, style, width, height)
    leaves = len(circles)
    sharp_from = 1
    if rng.random() < 0.5:
        # Many close-ups have little depth of field: what lies behind the subject is out of focus.
        sharp_from = max(1, int(leaves * rng.uniform(0.15, 0.5)))
    seen = _backdrop(rng, palette, width, height)
    if sharp_from > 1:
        behind = _drawn(outlines[: sharp_from - 1], 1, width, height)
        seen = _laid_over(seen, behind, palette).filter(ImageFilter.BoxBlur(side * float(rng.uniform(0.008, 0.02))))
    index = _drawn(outlines[sharp_from - 1 :], sharp_from, width, height)
    seen = _laid_over(seen, index, palette)
    lens = seen.filter(ImageFilter.BoxBlur(side / 375.0 * float(rng.uniform(0.3, 0.7))))
    centres = np.zeros((3, _LAYERS), np.float32)
    centres[:, 1 : 1 + leaves] = circles.T
    centres[:, :sharp_from] = 0.0
    return _Surfaces(np.asarray(lens), index, _shadows(rng, index), centres)


def _drawn(outlines: list[npt.NDArray[np.float64]], first: int, width: int, height: int) -> Pixels:
    """Return which outline each pixel shows, counted from `first`; 0 where there is none."""
    image = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(image)
    for layer, outline in enumerate(outlines, start=first):
        draw.polygon(outline.ravel().tolist(), fill=layer)
    return np.asarray(image)


def _laid_over(backdrop: Image.Image, index: Pixels, palette: Field) -> Image.Image:
    """Return the backdrop, in RGBX, under the surfaces of an index."""
    # A pixel is handled as one number of 32 bits.
    colours = np.zeros((_LAYERS, 4), np.uint8)
    colours[:, :3] = palette
    packed = np.take(colours.view(np.uint32)[:, 0], index)
    behind = np.asarray(backdrop).view(np.uint32)[..., 0]
    over = np.where(index > 0, packed, behind)
    return Image.fromarray(over.view(np.uint8).reshape(*index.shape, 4), mode="RGBX")


def _shadows(rng: np.random.Generator, index: Pixels) -> Pixels:
    """Return the depth of the shadows that leaves throw on what is behind them, in levels of 128."""
    side = min(index.shape)
    dy, dx = (round(float(shift)) for shift in side * 0.015 * rng.normal(0, 1, 2))
    # What is in front has the higher index.
    caster = np.zeros_like(index)
    to_y, from_y, to_x, from_x = (slice(max(0, d), min(0, d) or None) for d in (dy, -dy, dx, -dx))
    caster[to_y, to_x] = index[from_y, from_x]
    depth = rng.integers(25, 60, _LAYERS, dtype=np.uint8)
    depth[0] = 0
    hard = np.where(caster > index, np.take(depth, caster), np.uint8(0))
    return np.asarray(Image.fromarray(hard).filter(ImageFilter.BoxBlur(side * 0.008)))


def _outlines(
    rng: np.random.Generator, style: Style, width: int, height: int
) -> tuple[list[npt.NDArray[np.float64]], npt.NDArray[np.float32]]:
    """Return the outlines from back to front, and x, y and 1 / radius of each."""
    side = min(width, height)
    count = int(np.clip(rng.normal(110, 25) * style.crowding, 20, 240))
    radius = side * leaf_radii(rng, count)
    x, y = rng.uniform(0, width, count), rng.uniform(0, height, count)
    radius = radius[np.argsort(-radius * rng.lognormal(0, 0.5, count))]
    outlines = list(leaf_outlines(rng, style.roundness, x, y, radius))
    return outlines, np.stack((x, y, 1 / radius), axis=1).astype(np.float32)


def _backdrop(rng: np.random.Generator, palette: Field, width: int, height: int) -> Image.Image:
    """Return, in RGBX, what a close-up has behind its subject: a soft field of a few colours."""
    patches = palette[rng.integers(0, _LAYERS, (5, 7))]
    patches = 0.5 * patches + 0.5 * patches.mean((0, 1))
    small = Image.fromarray(np.clip(patches, 0, 255).astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BILINEAR).convert("RGBX")


def _light(rng: np.random.Generator, width: int, height: int) -> Field:
    """Return uneven light in levels of 128, darker towards the corners as lenses have it."""
    coarse = Image.fromarray(rng.normal(0.0, 14.0, (4, 5)).astype(np.float32))
    soft = np.array(coarse.resize((width, height), Image.Resampling.BILINEAR))
    v = np.linspace(-1.0, 1.0, height, dtype=np.float32)[:, None]
    u = np.linspace(-1.0, 1.0, width, dtype=np.float32)[None, :]
    soft -= np.float32(rng.uniform(3.0, 15.0)) * (u * u + v * v)
    return soft


def _rounding(rng: np.random.Generator, surfaces: _Surfaces) -> Field:
    """Return the shading of rounded surfaces that are lit from one side, in levels of 128."""
    height, width = surfaces.index.shape
    x, y, inverse = (np.take(surfaces.centres[part], surfaces.index) for part in range(3))
    u = (np.arange(width, dtype=np.float32)[None, :] - x) * inverse
    v = (np.arange(height, dtype=np.float32)[:, None] - y) * inverse
    angle, strength = float(rng.uniform(0, math.tau)), float(rng.uniform(15.0, 45.0))
    bulge = np.float32(rng.uniform(5.0, 25.0))
    # The slope of a sphere towards the light, and the dark of its rim.
    lit: Field = u * (np.float32(strength * math.cos(angle)) - bulge * u)
    lit += v * (np.float32(strength * math.sin(angle)) - bulge * v)
    return lit


def _relief(rng: np.random.Generator, style: Style, textures: Textures, index: Pixels, detail: float) -> Field:
    """Return the shading of rough surfaces, in levels of 128: patches of tone, and slopes that catch the light."""
    height, width = index.shape
    field = textures.patch(rng, style.kind, height + 1, width + 1)
    slope = field[1:, 1:] - field[:-1, :-1]
    slope *= np.float32(1.0 / max(1e-6, float(slope.std())))
    roughness = rng.gamma(3.0, 7.0 * detail, _LAYERS).astype(np.float32)
    mottling = rng.gamma(2.0, 5.0, _LAYERS).astype(np.float32)
    # The backdrop is out of focus.
    roughness[0] *= 0.25
    mottling[0] *= 0.5
    relief: Field = slope * np.take(roughness, index)
    relief += textures.patch(rng, 1, height, width) * np.take(mottling, index)
    return relief
