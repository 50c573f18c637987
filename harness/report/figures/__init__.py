"""One module a figure, found by its name in the experiment's `figures`.

A figure module has `draw(results) -> Figure | None`, None when the folder holds nothing to draw, and
`caption(results) -> str`, one or two sentences that say how to read it. It may have `table(results) -> FigureTable |
None`, which the page and the terminal show beside the picture, and `CLAIMS`, the path of a YAML with claims of its own
beside those of conf/claims (docs/claims.md). A name with a dot is an import path of the user's own. docs/figures.md has
an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from harness.errors import ResultsError
from harness.keys import nearest
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results

__all__ = ["Drawn", "check_figures", "draw_figures", "figure_modules", "figure_tables"]

_SHARED = {"epochs", "lines", "losses", "marks", "overtime", "palette", "slots", "style", "tables", "throughput", "use"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn and saved."""

    name: str
    caption: str
    png: Path
    svg: Path
    table: FigureTable | None = None


def check_figures(names: Iterable[str]) -> None:
    """Raise ResultsError naming a figure that is not there; imports none of them but their packages."""
    for name in names:
        try:
            found = None if name in _SHARED else find_spec(_path(name))
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise _no_figure(name)


def figure_modules(results: Results) -> tuple[ModuleType, ...]:
    """Return the modules of the figures that the config names; raises ResultsError as draw_figures does."""
    return tuple(_module(str(name)) for name in results.config.get("figures") or ())


def figure_tables(results: Results) -> tuple[FigureTable, ...]:
    """Return the tables of the experiment's figures; raises ResultsError as draw_figures does."""
    found = (module.table(results) for module in figure_modules(results) if hasattr(module, "table"))
    return tuple(table for table in found if table is not None)


def draw_figures(results: Results) -> tuple[Drawn, ...]:
    """Draw every figure that the experiment's config names into the folder's figures/.

    Raises ResultsError naming a figure that is not there.
    """
    names = [str(name) for name in results.config.get("figures") or ()]
    return tuple(_drawn(results, names))


def _drawn(results: Results, names: Sequence[str]) -> Iterable[Drawn]:
    if not names:
        return
    # Slow to import, and a run imports this module to begin with.
    from harness.report.figures.style import house_style, save

    for name in names:
        module = _module(name)
        with house_style(name):
            figure = module.draw(results)
            if figure is not None:
                stem = name.rpartition(".")[2]
                png, svg = save(figure, results.folder / "figures" / stem)
                table = module.table(results) if hasattr(module, "table") else None
                yield Drawn(stem, module.caption(results), png, svg, table)


def _module(name: str) -> ModuleType:
    path = _path(name)
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise _no_figure(name) from error


def _path(name: str) -> str:
    return name if "." in name else f"{__name__}.{name}"


def _no_figure(name: str) -> ResultsError:
    known = [module.name for module in iter_modules(__path__) if module.name not in _SHARED]
    near = nearest(name, known)
    meant = f" (did you mean {near}?)" if near else ""
    return ResultsError(
        f"figures: no figure {name!r}{meant}; expected {', '.join(known)}, "
        "or the import path of a module with draw and caption"
    )
