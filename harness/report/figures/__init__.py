"""One module a figure, found by its name in the experiment's `figures`.

A figure module has `draw(results) -> Figure | None`, None when the folder holds nothing to draw, and
`caption(results) -> str`, one or two sentences that say how to read it. It may have `table(results) -> FigureTable |
None`, which the page and the terminal show beside the picture, and `CLAIMS`, the path of a YAML with claims of its own
beside those of conf/claims (docs/claims.md). A name that is no figure of this package is the import path of a module
of the user's own. docs/figures.md has an example.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TypeVar

from harness.config.validation import nearest
from harness.errors import HarnessError, Interrupted, ResultsError
from harness.report.figures.tables import FigureTable
from harness.report.folder import Results

__all__ = ["BrokenFigure", "Drawn", "check_figures", "draw_figures", "figure_modules", "figure_tables"]

T = TypeVar("T")

_SHARED = {"epochs", "lines", "losses", "marks", "overtime", "palette", "slots", "style", "tables", "throughput", "use"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure that was drawn and saved."""

    name: str
    title: str
    """What it shows: the first line of its module's docstring, without the full stop."""
    caption: str
    png: Path
    svg: Path
    table: FigureTable | None = None


@dataclass(frozen=True, slots=True)
class BrokenFigure:
    """A figure that cannot be drawn."""

    name: str
    error: str
    """What its module raised, and in which line of it."""

    @property
    def text(self) -> str:
        """What is said of it."""
        return f"figure {self.name} cannot be drawn: {self.error}"


def check_figures(names: Iterable[str]) -> None:
    """Raise ResultsError naming a figure that is not there, or one of the user's own that cannot be drawn.

    Imports the user's own modules, and none of this package's.
    """
    for name in names:
        if _path(name) == name:
            _check_own(name)


def draw_figures(results: Results) -> tuple[Drawn | BrokenFigure, ...]:
    """Draw the figures that the config names into the folder's figures/; one with nothing to draw is left out."""
    found = [_use(name, partial(_drawn, results, stem)) for name, stem in _stems(results)]
    return tuple(one for one in found if one is not None)


def figure_tables(results: Results) -> tuple[FigureTable, ...]:
    """Return the tables of the experiment's figures; those of figures that cannot be drawn are left out."""
    found = [_use(name, partial(_table, results)) for name, _ in _stems(results)]
    return tuple(one for one in found if isinstance(one, FigureTable))


def figure_modules(results: Results) -> tuple[ModuleType, ...]:
    """Return the modules of the experiment's figures; one that cannot be imported is left out."""
    found = [_use(name, lambda module: module) for name, _ in _stems(results)]
    return tuple(one for one in found if isinstance(one, ModuleType))


def _stems(results: Results) -> Iterable[tuple[str, str]]:
    """Yield the name of each figure, and what its files are called."""
    used: set[str] = set()
    for name in map(str, results.config.get("figures") or ()):
        stem = name.rpartition(".")[2]
        stem = name.replace(".", "_") if stem in used else stem
        used.add(stem)
        yield name, stem


def _use(name: str, use: Callable[[ModuleType], T]) -> T | BrokenFigure:
    """Return what `use` makes of a figure's module.

    The module may be the user's own: whatever it raises is the figure's error, and does not end the report.
    """
    try:
        return use(import_module(_path(name)))
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - it stands in the figure's place, and the exit status says so
        return BrokenFigure(name, _told(error, name))


def _told(error: Exception, name: str) -> str:
    """Return an error as one line; one that is not the project's with the line of the module that led to it."""
    text = " ".join(str(error).split())
    if isinstance(error, HarnessError):
        return text
    text = f"{type(error).__name__}: {text}".removesuffix(": ")
    file = f"{name.rpartition('.')[2]}.py"
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).name == file]
    return f"{text} ({file}, line {lines[-1]})" if lines else text


def _drawn(results: Results, stem: str, module: ModuleType) -> Drawn | None:
    # Slow to import, and a run imports this module to begin with.
    from harness.report.figures.style import house_style, save

    with house_style(stem):
        figure = module.draw(results)
        if figure is None:
            return None
        caption = str(module.caption(results))
        title = (module.__doc__ or caption or stem).strip().splitlines()[0].rstrip(".")
        png, svg = save(figure, results.folder / "figures" / stem)
        return Drawn(stem, title, caption, png, svg, _table(results, module))


def _table(results: Results, module: ModuleType) -> FigureTable | None:
    table: FigureTable | None = module.table(results) if hasattr(module, "table") else None
    return table


def _check_own(name: str) -> None:
    from harness.report.claims import read_claims

    module = _use(name, lambda module: module)
    if isinstance(module, BrokenFigure):
        raise ResultsError(f"figures: {name!r} cannot be imported: {module.error}")
    missing = [part for part in ("draw", "caption") if not callable(getattr(module, part, None))]
    if missing:
        raise ResultsError(
            f"figures: {name!r} ({module.__file__}) is no figure: it lacks {' and '.join(missing)}; "
            "expected draw(results) and caption(results)"
        )
    if hasattr(module, "CLAIMS"):
        read_claims(Path(module.CLAIMS))


def _path(name: str) -> str:
    """Return the import path of a figure: of this package, else of the user's own; raises ResultsError without one."""
    if name not in _SHARED and "." not in name and find_spec(f"{__name__}.{name}"):
        return f"{__name__}.{name}"
    try:
        found = find_spec(name)
    except (ImportError, ValueError):  # of a package that is not there; of a name such as "a..b"
        found = None
    if found is None:
        raise _no_figure(name)
    return name


def _no_figure(name: str) -> ResultsError:
    known = [module.name for module in iter_modules(__path__) if module.name not in _SHARED]
    near = nearest(name, known)
    meant = f" (did you mean {near}?)" if near else ""
    return ResultsError(
        f"figures: no figure {name!r}{meant}; expected {', '.join(known)}, "
        "or the import path of a module with draw and caption"
    )
