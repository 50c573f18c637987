"""Figures, found by their names in the experiment's `figures` and drawn from the results folder alone.

A figure is a YAML: of conf/figure by its id, or of the user by its path, which ends in .yaml. Its family names the
plotter, a module of this package. A name that is neither is the import path of a module of the user's own, which has
`draw(results) -> Figure | None` and `caption(results) -> str`, and may have `table(results) -> Table | None` and
`CLAIMS`, the path of a YAML with claims (docs/claims.md). docs/figures.md has an example of each.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.config.validation import did_you_mean
from harness.errors import HarnessError, ResultsError
from harness.report.distance import choose_figure
from harness.report.figures.definition import Bars, Figure, list_packaged, read_figure
from harness.report.figures.sentences import fill, read_sentences, run_words
from harness.report.labels import MODEL_CHECK, label_table
from harness.report.papers import find_published
from harness.results.reader import Results
from joulefeed.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

__all__ = [
    "BrokenFigure",
    "DrawnFigure",
    "check_figures",
    "draw_figures",
    "find_claim_files",
    "find_figure",
    "list_claimed",
    "make_figure_tables",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """A figure that was drawn and saved."""

    name: str
    title: str
    """What it shows."""
    caption: str
    png: Path
    svg: Path
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class BrokenFigure:
    """A figure that cannot be drawn."""

    name: str
    error: str
    """What its module raised, and in which line of it."""

    @property
    def text(self) -> str:
        """The line that names the figure and its error."""
        return f"figure {self.name} cannot be drawn: {self.error}"


class _FigureSource(Protocol):
    """What draws a figure: a YAML with its plotter, or a module of the user's own."""

    def draw(self, results: Results) -> Picture | None: ...
    def caption(self, results: Results) -> str: ...


@dataclass(frozen=True, slots=True)
class _FromYaml:
    """A figure of a YAML.

    The plotter, a module of this package, has `draw(spec, results, heading)`, and may have `table(spec, results)` and
    `words(spec, results)`, words of the family for the templates. Plotters are slow to import, and a run imports this
    package before it measures, so a plotter is imported when it draws.
    """

    spec: Figure

    def draw(self, results: Results) -> Picture | None:
        heading = fill(self.spec.heading, self._words(results))
        heading = "; ".join(filter(None, [MODEL_CHECK if results.model_checks else "", heading]))
        picture: Picture | None = self._plotter.draw(self.spec, results, heading)
        return picture

    def caption(self, results: Results) -> str:
        parts = [fill(self.spec.caption, self._words(results))]
        parts += ["One repeat: no ratio has an interval."] if results.experiment.turns == 1 else []
        entry = "/".join(self.spec.values.split("/")[:2])
        conflicts = list(find_published(entry).conflicts.values()) if entry else []
        return " ".join([*parts, "The paper contradicts itself:", *conflicts] if conflicts else parts)

    def table(self, results: Results) -> Table | None:
        table: Table | None = getattr(self._plotter, "table", lambda *_: None)(self.spec, results)
        return table

    def _words(self, results: Results) -> Mapping[str, object]:
        return {**run_words(results), **getattr(self._plotter, "words", lambda *_: {})(self.spec, results)}

    @property
    def _plotter(self) -> ModuleType:
        return import_module(f"{__name__}.{self.spec.family}")


def find_figure(name: str) -> _FigureSource:
    """Return what draws a figure. Raises ResultsError where there is no such figure or its YAML is wrong."""
    path = list_packaged().get(name) or (Path(name) if name.endswith(".yaml") else None)
    if path is not None:
        return _FromYaml(read_figure(path))
    try:
        found = find_spec(name)
    except (ImportError, ValueError):  # of a package that is not there; of a name such as "a..b"
        found = None
    if found is None:
        known = list_packaged()
        raise ResultsError(
            f"figures: no figure {name!r}{did_you_mean(name, known)}; expected {', '.join(known)}, the path of a "
            ".yaml, or the import path of a module with draw and caption"
        )
    module: _FigureSource = import_module(name)
    return module


def check_figures(names: Iterable[str]) -> None:
    """Raise ResultsError naming a figure that is not there, or one of the user's own that cannot be drawn."""
    for name in names:
        try:
            source = find_figure(name)
        except HarnessError:
            raise
        except Exception as error:
            raise ResultsError(f"figures: {name!r} cannot be imported: {_one_line(error, name)}") from error
        missing = [part for part in ("draw", "caption") if not callable(getattr(source, part, None))]
        if missing:
            raise ResultsError(
                f"figures: {name!r} ({getattr(source, '__file__', name)}) is no figure: it lacks "
                f"{' and '.join(missing)}; expected draw(results) and caption(results)"
            )


def draw_figures(results: Results) -> tuple[DrawnFigure | BrokenFigure, ...]:
    """Draw the figures that the config names into the folder's figures/; one with nothing to draw is left out."""
    found = [_use(name, partial(_drawn, results, stem)) for name, stem in _stems(results)]
    return tuple(one for one in found if one is not None)


def make_figure_tables(results: Results) -> tuple[Table, ...]:
    """Return the tables of the experiment's figures; those of figures that cannot be drawn are left out."""
    found = [_use(name, partial(_table, results)) for name, _ in _stems(results)]
    return tuple(one for one in found if isinstance(one, Table))


def find_claim_files(names: Iterable[str]) -> tuple[Path, ...]:
    """Return the YAMLs with claims that figures of the user's own bring."""
    sources = [_use(name, lambda source: source) for name in names]
    return tuple(Path(source.CLAIMS) for source in sources if hasattr(source, "CLAIMS"))


def list_claimed(results: Results) -> tuple[str, ...]:
    """Return the figures whose claims are asked, by name.

    They are the experiment's, and its own name, for an experiment without a figure may have claims. In place of figures
    by distance, the one of the experiment's own name is taken, or the paper's figure that asks what the run asks.
    """
    known = list_packaged()
    by_distance = [name for name in results.experiment.figures if name in known and _is_by_distance(known[name])]
    names = [name for name in results.experiment.figures if name not in by_distance]
    if by_distance:
        names += [results.name if results.name in by_distance else choose_figure(results).id]
    return (*names, *([results.name] if results.name not in known else []))


def _is_by_distance(path: Path) -> bool:
    spec = read_figure(path)
    return isinstance(spec, Bars) and spec.by_distance


def _stems(results: Results) -> Iterable[tuple[str, str]]:
    """Yield the name of each figure, and how its files are called."""
    used: set[str] = set()
    for name in results.experiment.figures:
        whole = name.removesuffix(".yaml").strip("./").replace("/", ".")
        stem = whole.rpartition(".")[2]
        stem = whole.replace(".", "_") if stem in used else stem
        used.add(stem)
        yield name, stem


def _use(name: str, use: Callable[[_FigureSource], T]) -> T | BrokenFigure:
    """Return the result of `use` with a figure.

    The figure may be the user's own: any error of it stands in its place, and does not end the report.
    """
    try:
        return use(find_figure(name))
    except Exception as error:  # noqa: BLE001 - it stands in the figure's place, and the exit status says so
        return BrokenFigure(name, _one_line(error, name))


def _one_line(error: Exception, name: str) -> str:
    """Return an error as one line; one that is not the project's with the line of the module that led to it."""
    text = " ".join(str(error).split())
    if isinstance(error, HarnessError):
        return text
    text = f"{type(error).__name__}: {text}".removesuffix(": ")
    file = f"{name.rpartition('.')[2]}.py"
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).name == file]
    return f"{text} ({file}, line {lines[-1]})" if lines else text


def _drawn(results: Results, stem: str, source: _FigureSource) -> DrawnFigure | None:
    from harness.report.figures.style import save, use_house_style

    with use_house_style(stem):
        picture = source.draw(results)
        if picture is None:
            return None
        caption = str(source.caption(results))
        title = source.spec.title if isinstance(source, _FromYaml) else (source.__doc__ or caption or stem)
        if results.model_checks:
            title = f"{MODEL_CHECK.capitalize()}: {title}"
            caption = f"{fill(read_sentences()['model_check'], run_words(results))} {caption}"
        png, svg = save(picture, results.folder / "figures" / stem)
        return DrawnFigure(stem, title.strip().splitlines()[0].rstrip("."), caption, png, svg, _table(results, source))


def _table(results: Results, source: _FigureSource) -> Table | None:
    make: Callable[[Results], Table | None] = getattr(source, "table", lambda _: None)
    table = make(results)
    return None if table is None else label_table(results, table)
