"""One module a figure, found by its name in the experiment's `figures`.

A figure module has `draw(results) -> Figure | None`, None when the folder holds nothing to draw, and
`caption(results) -> str`, one or two sentences that say how to read it. A name with a dot is an import path of
the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from harness.errors import ResultsError
from harness.report.figures.style import house_style, save
from harness.report.folder import Results

__all__ = ["Drawn", "check_figures", "draw_figures"]

_SHARED = {"epochs", "marks", "slots", "style"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn and saved."""

    name: str
    caption: str
    png: Path
    svg: Path


def check_figures(names: Iterable[str]) -> None:
    """Raise ResultsError naming a figure that is not there."""
    for name in names:
        _module(name)


def draw_figures(results: Results) -> tuple[Drawn, ...]:
    """Draw every figure that the experiment's config names into the folder's figures/.

    Raises ResultsError naming a figure that is not there.
    """
    names = [str(name) for name in results.config.get("figures") or ()]
    return tuple(_drawn(results, names))


def _drawn(results: Results, names: Iterable[str]) -> Iterable[Drawn]:
    for name in names:
        module = _module(name)
        with house_style(name):
            figure = module.draw(results)
            if figure is not None:
                stem = name.rpartition(".")[2]
                png, svg = save(figure, results.folder / "figures" / stem)
                yield Drawn(stem, module.caption(results), png, svg)


def _module(name: str) -> ModuleType:
    path = name if "." in name else f"{__name__}.{name}"
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        known = ", ".join(module.name for module in iter_modules(__path__) if module.name not in _SHARED)
        raise ResultsError(
            f"figures: no figure {name!r}; expected {known}, or the import path of a module with draw and caption"
        ) from error
