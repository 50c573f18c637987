"""Outlines of what a picture holds: leaves of any size, and ridges against the sky."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["clipped", "leaf_outlines", "leaf_radii", "ridge_outline"]

Array = npt.NDArray[np.float64]

_CORNERS: Final = 28

_SMALLEST: Final = 0.012
_LARGEST: Final = 0.40


def leaf_radii(rng: np.random.Generator, count: int) -> Array:
    """Draw radii as shares of the picture's shorter side.

    Their density falls as radius ** -3, which makes the picture look the same at every scale (Lee, Mumford and
    Huang, 2001); one in five is drawn evenly, so that every picture has a subject.
    """
    low, high = _SMALLEST**-2, _LARGEST**-2
    radii = 1.0 / np.sqrt(low - rng.random(count) * (low - high))
    subjects = max(1, count // 5)
    radii[:subjects] = rng.uniform(0.06, _LARGEST, subjects)
    return rng.permutation(radii)


def leaf_outlines(rng: np.random.Generator, roundness: float, x: Array, y: Array, radius: Array) -> Array:
    """Return leaves around the points x, y: lumpy ellipses, or, in a share 1 - roundness, quadrilaterals.

    All arguments in pixels and of shape (n,); the result has shape (n, corners, 2), x before y.
    """
    count = len(radius)
    angles = np.broadcast_to(np.linspace(0.0, math.tau, _CORNERS, endpoint=False), (count, _CORNERS))
    orders = np.array([2.0, 3.0, 5.0])[None, :, None]
    phases, heights = rng.uniform(0, math.tau, (count, 3, 1)), rng.normal(0, 0.12, (count, 3, 1))
    reach = radius[:, None] * (1.0 + (heights / orders * np.cos(orders * angles[:, None, :] + phases)).sum(1))
    # A quadrilateral is four corners, the last of them repeated.
    four = rng.uniform(0, 0.9, (count, 4)) + np.arange(4) * (math.tau / 4)
    four = np.concatenate((four, np.repeat(four[:, 3:], _CORNERS - 4, axis=1)), axis=1)
    rounded = rng.random((count, 1)) < roundness
    angles, reach = np.where(rounded, angles, four), np.where(rounded, reach, radius[:, None])
    turn, stretch = rng.uniform(0, math.tau, (count, 1)), rng.uniform(0.35, 1.0, (count, 1))
    across, along = reach * np.cos(angles), reach * np.sin(angles) * stretch
    cos, sin = np.cos(turn), np.sin(turn)
    return np.stack((x[:, None] + across * cos - along * sin, y[:, None] + across * sin + along * cos), axis=2)


def clipped(outline: Array, width: float, height: float) -> Array:
    """Return the part of an outline inside a picture, shape (corners, 2); empty where none is.

    Sutherland and Hodgman's algorithm (Communications of the ACM 17(1), 1974), an edge of the picture at a time.
    """
    for axis, bound, sign in ((0, 0.0, 1), (0, width, -1), (1, 0.0, 1), (1, height, -1)):
        inside = sign * (outline[:, axis] - bound) >= 0
        if inside.all():
            continue
        kept: list[Array] = []
        for here, after in zip(range(len(outline)), [*range(1, len(outline)), 0], strict=True):
            if inside[here]:
                kept.append(outline[here])
            if inside[here] != inside[after]:
                share = (bound - outline[here, axis]) / (outline[after, axis] - outline[here, axis])
                crossing = outline[here] + share * (outline[after] - outline[here])
                crossing[axis] = bound
                kept.append(crossing)
        outline = np.array(kept).reshape(-1, 2)
    return outline


def ridge_outline(rng: np.random.Generator, width: int, height: int, level: float) -> Array:
    """Return the ground up to a rough skyline about `level` pixels from the top; (corners, 2), x before y."""
    points = 96
    frequency = np.arange(points // 2 + 1, dtype=np.float64)
    frequency[0] = np.inf
    phases = np.exp(1j * rng.uniform(0, math.tau, points // 2 + 1))
    line = np.fft.irfft(phases / frequency ** float(rng.uniform(1.0, 1.6)), points)
    line *= min(width, height) * float(rng.uniform(0.01, 0.07)) / line.std()
    xs = np.linspace(0, width, points)
    top = np.stack((xs, level + line), axis=1)
    return np.concatenate((top, [[width, height], [0, height]]))
