"""The colours of figures and of the page; imports nothing that draws."""

from __future__ import annotations

__all__ = [
    "BAD",
    "DOMAIN_COLOURS",
    "ESTIMATE_HATCH",
    "FAINT",
    "GRID",
    "INK",
    "LOADER_COLOURS",
    "MUTED",
    "SURFACE",
    "loader_colour",
]

INK = "#1b1f24"
MUTED = "#5c6570"
FAINT = "#9aa3ad"
GRID = "#e3e7eb"
SURFACE = "#ffffff"
BAD = "#c2410c"
DOMAIN_COLOURS = {"cpu": "#3b78b8", "dram": "#e0a32e", "gpu": "#2f9e8a"}
"""Told apart by deuteranopes and protanopes, and by lightness in grey print."""
ESTIMATE_HATCH = "/////"
LOADER_COLOURS = {
    "pytorch": "#c4553b",
    "dali": "#3b78b8",
    "spdl": "#2f9e8a",
    "fixed": INK,
    "streaming": "#8a5fb0",
    "sample_aware": "#0f6b5c",
    "pecan": "#e0a32e",
    "size_balanced": "#a3577f",
}
"""By the section that a loader comes from."""
_OTHER_LOADERS = ("#e0a32e", "#5c6570", "#a3577f", "#7a8b2e")


def loader_colour(base: str) -> str:
    """Return a loader's colour, the same in every figure."""
    return LOADER_COLOURS.get(base) or _OTHER_LOADERS[sum(base.encode()) % len(_OTHER_LOADERS)]
