"""How figures and the page look: colours, type, lines, and how a figure is saved. Matplotlib is imported on use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK = "#1b1f24"
MUTED = "#5c6570"
FAINT = "#9aa3ad"
GRID = "#e3e7eb"
SURFACE = "#ffffff"
BAD = "#c2410c"
DOMAIN_COLOURS = {"cpu": "#3b78b8", "dram": "#e0a32e", "gpu": "#2f9e8a"}
"""Deuteranopes and protanopes can distinguish them, and so can readers of a grey print."""
ESTIMATE_HATCH = "/////"
LOADER_COLOURS = {
    "pytorch": "#c4553b",
    "pytorch_unordered": "#8c564b",
    "pytorch_emlio": "#e08a6d",
    "dali": "#3b78b8",
    "dali_emlio": "#7fb0dd",
    "spdl": "#2f9e8a",
    "spdl_stages": "#8fcfc2",
    "spdl_process": "#4f7f78",
    "fixed": INK,
    "streaming": "#8a5fb0",
    "streaming_emlio": "#b79ad0",
    "nosql": "#1f7a8c",
    "nosql_in_order": "#d17a22",
    "mosaic": "#7a8b2e",
    "tfdata": "#b0486a",
    "sample_aware": "#0f6b5c",
    "sample_aware_scheduled": "#6aa84f",
    "pecan": "#e0a32e",
    "size_balanced": "#a3577f",
}
"""By the section of the config that a loader comes from."""
_OTHER_LOADERS = ("#e0a32e", "#5c6570", "#a3577f", "#7a8b2e")


_STYLE = Path(__file__).parents[1] / "template" / "figures.mplstyle"


def choose_colour(base: str) -> str:
    """Return a loader's colour, the same in every figure."""
    return LOADER_COLOURS.get(base) or _OTHER_LOADERS[sum(base.encode()) % len(_OTHER_LOADERS)]


@contextmanager
def use_house_style(name: str) -> Iterator[None]:
    """Draw in the project's style. The name keeps the ids of the SVGs of one page apart."""
    import matplotlib as mpl
    import seaborn as sns

    house = mpl.rc_params_from_file(_STYLE, use_default_template=False)
    settings: dict[Any, Any] = {**sns.axes_style("whitegrid"), **house, "svg.hashsalt": name}
    with mpl.rc_context(settings):
        yield


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Save a figure as PNG (200 dots per inch) and SVG. Returns both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, dpi=200)
    figure.savefig(svg, metadata={"Date": None})
    return png, svg


def make_page(title: str, body: str) -> str:
    """Return a page of HTML in the project's style."""
    style = (_STYLE.parent / "report.css").read_text()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )
