"""Abdomens as computed tomography shows them: a body in air with fat, organs, a spine, kidneys and their tumours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from harness.datasets.pictures.texture import Field, smooth_noise

__all__ = ["KIDNEY", "TUMOUR", "Shape", "slices"]

Shape = tuple[int, int, int]
"""Depth, height and width in voxels."""
KIDNEY: Final = 1
TUMOUR: Final = 2

_AIR_HU, _FAT_HU, _MUSCLE_HU, _BONE_HU, _VISCERA_HU = -1000.0, -100.0, 55.0, 450.0, 20.0
_NOISE_HU: Final = 14.0
_VISCERA_SPREAD_HU: Final = 60.0
_FIELD: Final = 512
"""Edge of the periodic fields of noise of which patches are taken."""


@dataclass(frozen=True, slots=True)
class _Ellipsoid:
    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    hu: float
    label: int
    hollow: tuple[float, float, float] | None = None
    """Centre of the ball, half as wide as the least radius, that is missing: the hilum of a kidney."""

    def paint(self, z: int, hu: Field, labels: npt.NDArray[np.uint8]) -> None:
        """Fill this body's part of slice z, which keeps its noise."""
        (cz, cy, cx), (rz, ry, rx) = self.centre, self.radii
        height = 1 - ((z - cz) / rz) ** 2
        if height <= 0:
            return
        rows, columns = _span(cy, ry, hu.shape[0]), _span(cx, rx, hu.shape[1])
        y, x = np.ogrid[rows, columns]
        inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= height
        if self.hollow is not None:
            hz, hy, hx = self.hollow
            inside &= (z - hz) ** 2 + (y - hy) ** 2 + (x - hx) ** 2 > (min(self.radii) / 2) ** 2
        part = hu[rows, columns]
        part[inside] = part[inside] * 0.15 + self.hu
        if self.label:
            labels[rows, columns][inside] = self.label


def slices(seed: int, sample_id: int, shape: Shape, labels: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.int16]]:
    """Yield a case slice by slice as int16 Hounsfield units of shape (height, width), and fill `labels` beside it.

    `labels` is uint8 of `shape`: 0 background, 1 kidney, 2 tumour; every case has both.
    """
    rng = np.random.default_rng([seed, 0x1D, sample_id])
    plane, viscera = _cross_section(rng, shape)
    bodies = _organs(rng, shape)
    grain, soft = _fields(seed)
    drift = rng.integers(0, _FIELD, 2)
    for z in range(shape[0]):
        y, x = rng.integers(0, _FIELD, 2)
        hu = plane + _NOISE_HU * _patch(grain, int(y), int(x), shape)
        hu += viscera * _patch(soft, int(drift[0]) + 2 * z, int(drift[1]) + z, shape)
        labels[z] = 0
        for body in bodies:
            body.paint(z, hu, labels[z])
        np.clip(hu, -1024, 3071, out=hu)
        yield np.rint(hu, out=hu).astype(np.int16)


def _cross_section(rng: np.random.Generator, shape: Shape) -> tuple[Field, Field]:
    """Return the body without its organs in Hounsfield units, and how much its textures stir it, (height, width)."""
    _, height, width = shape
    y, x = np.ogrid[:height, :width]
    across, deep = rng.uniform(0.38, 0.47) * width, rng.uniform(0.28, 0.36) * height
    r = ((x - width / 2) / across) ** 2 + ((y - height / 2) / deep) ** 2
    fat = rng.uniform(0.7, 0.88)
    plane = np.select([r > 1, r > fat, r > fat - 0.12], [_AIR_HU, _FAT_HU, _MUSCLE_HU], _VISCERA_HU)
    spine = ((x - width / 2) / (0.06 * width)) ** 2 + ((y - height / 2 - 0.62 * deep) / (0.05 * height)) ** 2 <= 1
    plane[spine] = _BONE_HU
    viscera = np.where((r <= fat - 0.12) & ~spine, _VISCERA_SPREAD_HU, 0.0)
    return plane.astype(np.float32), viscera.astype(np.float32)


def _organs(rng: np.random.Generator, shape: Shape) -> list[_Ellipsoid]:
    """Return liver and spleen, the kidneys, then one to three tumours on them: what comes later covers."""
    depth, _, width = shape
    size = min(1.0, 0.75 * width / depth)
    found = [_ball(shape, (0.62, 0.45, 0.3), (0.2, 0.16, 0.14), rng.uniform(90, 120), 0)]
    found.append(_ball(shape, (0.65, 0.5, 0.74), (0.1, 0.08, 0.06), rng.uniform(100, 130), 0))
    enhanced = rng.uniform(140, 210)
    kidneys = []
    for side in (-1, 1):
        at = (rng.uniform(0.38, 0.48), rng.uniform(0.56, 0.62), 0.5 + side * rng.uniform(0.16, 0.2))
        radii = np.array([0.14 * size, 0.055, 0.05]) * rng.uniform(0.9, 1.15)
        kidney = _ball(shape, at, (float(radii[0]), float(radii[1]), float(radii[2])), enhanced, KIDNEY)
        cz, cy, cx = kidney.centre
        hollow = (cz, cy, cx - side * kidney.radii[2])  # towards the spine
        kidneys.append(_Ellipsoid(kidney.centre, kidney.radii, enhanced, KIDNEY, hollow))
    found += kidneys
    for _ in range(rng.choice([1, 2, 3], p=[0.85, 0.1, 0.05])):
        kidney = kidneys[rng.integers(0, 2)]
        direction = rng.standard_normal(3)
        direction /= np.linalg.norm(direction)
        centre = [float(c + r * d) for c, r, d in zip(kidney.centre, kidney.radii, direction, strict=True)]
        radius = max(1.2, float(np.exp(rng.normal(-3.1, 0.4))) * width)
        inside = [min(max(c, 1.0), n - 2.0) for c, n in zip(centre, shape, strict=True)]
        hu = rng.uniform(50, 110)
        found.append(_Ellipsoid((inside[0], inside[1], inside[2]), (radius, radius, radius), hu, TUMOUR))
    return found


def _ball(
    shape: Shape, at: tuple[float, float, float], radii: tuple[float, float, float], hu: float, label: int
) -> _Ellipsoid:
    """Return an ellipsoid whose centre and radii are given as shares of the volume's edges."""
    depth, height, width = shape
    centre = at[0] * depth, at[1] * height, at[2] * width
    return _Ellipsoid(
        centre, (max(1.6, radii[0] * depth), max(1.6, radii[1] * height), max(1.6, radii[2] * width)), hu, label
    )


def _span(centre: float, radius: float, edge: int) -> slice:
    return slice(max(0, int(centre - radius)), min(edge, int(centre + radius) + 2))


def _patch(field: Field, y: int, x: int, shape: Shape) -> Field:
    """Cut a patch of a periodic field; float32 of shape (height, width)."""
    _, height, width = shape
    if height > _FIELD or width > _FIELD:
        return field[np.arange(y, y + height)[:, None] % _FIELD, np.arange(x, x + width) % _FIELD]
    y, x = y % _FIELD, x % _FIELD
    return field[y : y + height, x : x + width]


@lru_cache(maxsize=1)
def _fields(seed: int) -> tuple[Field, Field]:
    """Return the grain of the scanner and the soft texture of viscera, zero mean, unit deviation."""
    rng = np.random.default_rng([seed, 0x7E])
    grain, soft = smooth_noise(rng, _FIELD, 0.4), smooth_noise(rng, _FIELD, 1.4)
    return np.tile(grain, (2, 2)), np.tile(soft, (2, 2))  # a patch that reaches over an edge is a plain slice
