"""A claim as a YAML of `conf/claims/` has it, checked; docs/claims.md describes the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config import list_packaged
from harness.config.validation import Section, parse
from harness.errors import ConfigError, ResultsError
from harness.report import papers
from harness.report.claims.metrics import METRICS
from harness.report.claims.words import STYLES, Bound, Style
from harness.results.files import refuse_damage

SELECTORS: Final = ("workload", "loader", "regime", "rtt_ms", "samples", "ranks")
"""Columns of a row by which it is selected; and the config's own keys behind one of `SECTIONS` and a dot."""
SECTIONS: Final = ("workload", "loader", "accelerator", "dataset")


class Needs(Section):
    """Conditions on a run for a claim to be judged on it."""

    accelerator: Literal["real", "emulated", "any"] = "any"
    """real: something is computed | emulated: there is a step, of whatever kind | any: also without any step."""
    devices: int = Field(default=1, ge=1)
    """Accelerators."""


@dataclass(frozen=True, slots=True)
class Values:
    """Which values of a key a claim runs over: these, those between two of them, or where neither is given all."""

    key: str
    listed: tuple[object, ...] = ()
    between: tuple[float, float] | None = None
    """Both ends have to be there."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One claim of a paper."""

    id: str
    figure: str
    """Of the experiment that asks for it, by its name in the experiment's `figures`."""
    claim: str
    """In a sentence."""
    source: str
    """Paper and section."""
    metric: str
    of: Mapping[str, object]
    """Which rows, by column or config key."""
    bound: Bound
    over: Mapping[str, object] | None = None
    """The rows by whose median that of the others is divided."""
    each: Values | None = None
    """Evaluated for every value of a key by itself."""
    combine: str = ""
    """What becomes of the values then."""
    style: Style = "number"
    needs: Needs = field(default_factory=Needs)
    settled: bool = False
    """Without the first epoch of cells that have several: it starts the workers."""
    peak: bool = False
    """Of a loader in several settings, that with the greatest median."""
    because: str = ""
    """A known cause of a difference, which is reported where the claim fails."""


@lru_cache(maxsize=1)
def make_definitions() -> tuple[Definition, ...]:
    """Return the claims of every paper."""
    return tuple(one for path in list_packaged("claims").values() for one in read_claims(path))


def read_claims(path: Path) -> tuple[Definition, ...]:
    """Read the claims of one paper; raises ResultsError naming the file, the claim and the key that is wrong."""
    with refuse_damage(path, "docs/claims.md describes claims"):
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    with _naming(str(path)):
        whole = parse(_File, stored)
    values = whole.paper if whole.paper in list_packaged("papers") else ""
    source = papers.read_paper(values).citation if values else whole.paper
    found: list[Definition] = []
    for number, entry in enumerate(whole.claims, 1):
        name = entry.get("id", f"number {number}") if isinstance(entry, Mapping) else f"number {number}"
        with _naming(f"{path}, claim {name}"):
            found.append(parse(_Entry, entry).definition(source, values))
    twice = [one.id for one in found if [other.id for other in found].count(one.id) > 1]
    if twice:
        raise ResultsError(f"{path}: id {twice[0]} is there twice; each claim has one of its own")
    return tuple(found)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ResultsError(f"{where}: {error}") from error


class _File(Section):
    """The YAML of one paper."""

    paper: str
    claims: list[object]


def _check_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"one of {', '.join(METRICS)}")
    return name


def _check_selectors(selection: Mapping[str, object]) -> Mapping[str, object]:
    for key in selection:
        part, _, name = key.partition(".")
        if key not in SELECTORS and not (name and part in SECTIONS):
            raise ValueError(
                f"keys among {', '.join(SELECTORS)}, or of the config such as loader.num_workers, not {key!r}"
            )
    return selection


class _Range(Section):
    start: float = Field(validation_alias="from")
    end: float = Field(validation_alias="to")


def _to_values(section: object) -> object:
    """Return `{rtt_ms: all}`, a list or a range of values as Values."""
    if not isinstance(section, Mapping) or len(section) != 1:
        raise ValueError("one key, such as {rtt_ms: all}")
    ((key, value),) = _check_selectors(section).items()
    if value == "all":
        return Values(key)
    if isinstance(value, list) and value:
        return Values(key, listed=tuple(value))
    try:
        ends = parse(_Range, value)
    except ConfigError as error:
        raise ValueError(f"{key} with all, a list of values, or {{from: 0.1, to: 30}}") from error
    return Values(key, between=(ends.start, ends.end))


_Value: TypeAlias = float | str
"""A number, or the path of a published value."""


class _Ratio(Section):
    ratio: list[_Value] = Field(min_length=2, max_length=2, description="two numbers above 0")


class _Tolerance(Section):
    relative: float | None = Field(default=None, ge=0)
    absolute: float | None = Field(default=None, ge=0)
    factor: float | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("expected one of relative, absolute, factor")
        return self


_PAPER: Final = "a number, a published value such as fig5_spread, or {ratio: [1, 2]} of two numbers above 0"
_Selection = Annotated[dict[str, object], AfterValidator(_check_selectors)]


class _Entry(Section):
    """One claim as the YAML writes it."""

    id: str
    figure: str
    text: str
    section: str
    metric: Annotated[str, AfterValidator(_check_metric)]
    of: _Selection = Field(default_factory=dict)
    over: _Selection | None = None
    each: Annotated[Values | None, BeforeValidator(_to_values)] = None
    combine: Literal["least", "greatest", "mean", "spread", "knee"] | None = None
    bound: Literal["at_least", "at_most", "within"] = Field(validation_alias="is")
    paper: _Value | _Ratio = Field(description=_PAPER)
    tolerance: _Tolerance = _Tolerance(factor=1)
    shown: str = ""
    style: Style | None = Field(default=None, validation_alias="as")
    needs: Needs = Needs()
    settled: bool = False
    peak: bool = False
    because: str = ""

    @model_validator(mode="after")
    def _check_combine(self) -> Self:
        if self.each is not None and self.combine is None:
            raise ValueError("combine is missing: expected one of least, greatest, mean, spread, knee beside each")
        if self.each is None and self.combine is not None:
            raise ValueError("combine without each: there is one value")
        return self

    def definition(self, source: str, values: str) -> Definition:
        """Return the claim of a source, whose published values are those of the paper `values`.

        Raises ConfigError for a value that is not published.
        """
        style: Style = "factor" if self.over is not None else STYLES[METRICS[self.metric]]
        if self.combine == "knee":
            style = "knee"
        elif self.combine == "spread":
            style = "percent"
        as_written = ("id", "figure", "metric", "of", "over", "each", "needs", "settled", "peak", "because")
        return Definition(
            **{name: getattr(self, name) for name in as_written},
            claim=self.text,
            source=f"{source}, {self.section}",
            combine=self.combine or "",
            bound=Bound(
                self.bound, self._published(values), self.shown, **self.tolerance.model_dump(exclude_none=True)
            ),
            style=self.style or style,
        )

    def _published(self, values: str) -> float:
        if not isinstance(self.paper, _Ratio):
            return self._number(self.paper, values)
        above, below = (self._number(part, values) for part in self.paper.ratio)
        if min(above, below) <= 0:
            raise ConfigError(f"paper.ratio={self.paper.ratio}: expected two numbers above 0")
        return above / below

    def _number(self, value: _Value, values: str) -> float:
        """Return a number, or the published value of a path; of a range the end that the bound compares with."""
        if not isinstance(value, str):
            return value
        try:
            found = papers.find_values(f"{values}/{value}" if values else value)
        except ResultsError as error:
            raise ConfigError(f"paper={value!r}: expected {_PAPER} ({error})") from error
        if isinstance(found, Mapping) or (isinstance(found, tuple) and self.bound == "within"):
            raise ConfigError(f"paper={value!r}: expected {_PAPER}; it has {found}")
        return papers.high(found) if self.bound == "at_most" else papers.low(found)
