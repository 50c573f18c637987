"""The claims of `conf/claims/`, read and checked; docs/claims.md describes the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from pathlib import Path
from string import Template
from typing import Annotated, Final, Literal, Self, TypeAlias

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config import list_packaged
from harness.config.validation import Section, parse
from harness.errors import ConfigError, ResultsError
from harness.report import papers
from harness.report.claims.bound import STYLES, Bound, Style
from harness.report.claims.definition import Definition, Needs, Side, Values
from harness.report.claims.metrics import METRICS, OF_SETUP
from harness.report.labels import spell
from harness.results.files import refuse_damage

SELECTORS: Final = ("workload", "loader", "regime", "rtt_ms", "samples", "ranks", "setting")
"""Columns of a row by which it is selected; and the config's own keys behind one of `SECTIONS` and a dot."""
SECTIONS: Final = ("workload", "loader", "accelerator", "dataset")
_COMBINE: Final = "least, greatest, mean, spread, growth, knee"


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
            found += [parse(_StoredClaim, one).definition(source, values) for one in _expand(entry)]
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


def _expand(entry: object) -> Iterator[object]:
    """Yield an entry as it is; one with `for` once for every combination of its names' values, which it then has.

    Raises ConfigError where `for` is no names with their values.
    """
    if not isinstance(entry, Mapping) or "for" not in entry:
        yield entry
        return
    names = entry["for"]
    if not isinstance(names, Mapping) or not all(names.values()):
        raise ConfigError(f"for={names!r}: expected names with a list of values, or with words by value")
    rest = {key: value for key, value in entry.items() if key != "for"}
    for chosen in product(*names.values()):
        values = dict(zip(names, chosen, strict=True))
        words = {
            name: str(names[name][value]) if isinstance(names[name], Mapping) else spell(str(value))
            for name, value in values.items()
        }
        yield {key: _fill(part, {**values, **words} if key == "text" else values) for key, part in rest.items()}


def _fill(part: object, values: Mapping[str, object]) -> object:
    """Return a part of an entry with `$name` replaced; a text that is nothing else becomes the value as it is."""
    if isinstance(part, Mapping):
        return {key: _fill(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_fill(value, values) for value in part]
    if not isinstance(part, str):
        return part
    if part.startswith("$") and part[1:] in values:
        return values[part[1:]]
    return Template(part).safe_substitute(values)


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


def _to_each(section: object) -> object:
    """Return `{rtt_ms: all}`, or several keys with a list or a range of values each, as Values."""
    if not isinstance(section, Mapping) or not section:
        raise ValueError("keys with their values, such as {rtt_ms: all}")
    return tuple(_to_values(str(key), value) for key, value in section.items())


def _to_values(written: str, value: object) -> Values:
    part, _, rest = written.partition(".")
    side: Side = "of" if part == "of" else "over" if part == "over" else "both"
    key = written if side == "both" else rest
    _check_selectors({key: value})
    if value == "all":
        return Values(key, side=side)
    if isinstance(value, list) and value:
        return Values(key, listed=tuple(value), side=side)
    try:
        ends = parse(_Range, value)
    except ConfigError as error:
        raise ValueError(f"{written} with all, a list of values, or {{from: 0.1, to: 30}}") from error
    return Values(key, between=(ends.start, ends.end), side=side)


_Value: TypeAlias = float | str
"""A number, or the path of a published value."""


class _PublishedRatio(Section):
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


class _StoredClaim(Section):
    """One claim as the YAML writes it."""

    id: str
    figure: str
    text: str
    section: str
    metric: Annotated[str, AfterValidator(_check_metric)]
    of: _Selection = Field(default_factory=dict)
    over: _Selection | None = None
    each: Annotated[tuple[Values, ...], BeforeValidator(_to_each)] = ()
    combine: Literal["least", "greatest", "mean", "spread", "growth", "knee"] | None = None
    bound: Literal["above", "below", "at_least", "at_most", "within", "equal"] = Field(validation_alias="is")
    paper: _Value | _PublishedRatio = Field(description=_PAPER)
    tolerance: _Tolerance | None = None
    shown: str = ""
    style: Style | None = Field(default=None, validation_alias="as")
    needs: Needs = Needs()
    settled: bool = True
    peak: bool = False
    because: str = ""
    conflict: str = ""

    @model_validator(mode="after")
    def _check_combine(self) -> Self:
        if self.each and self.combine is None:
            raise ValueError(f"combine is missing: expected one of {_COMBINE} beside each")
        if not self.each and self.combine is not None:
            raise ValueError("combine without each: there is one value")
        if self.combine in ("growth", "knee") and len(self.each) > 1:
            raise ValueError(f"combine={self.combine} with several keys: expected one key in each")
        if self.over is None and any(values.side == "over" for values in self.each):
            raise ValueError("each has a key of over, and the claim has no over")
        return self

    @model_validator(mode="after")
    def _check_settled(self) -> Self:
        if self.settled and self.metric in OF_SETUP:
            raise ValueError(f"settled: expected false, for {self.metric} is of the first epoch of a cell")
        return self

    @model_validator(mode="after")
    def _check_strict(self) -> Self:
        if self.bound in ("above", "below", "equal") and self.tolerance is not None:
            raise ValueError(f"tolerance with is={self.bound}: expected none, for the bound itself fails")
        return self

    def definition(self, source: str, values: str) -> Definition:
        """Return the claim of a source, whose published values are those of the paper `values`.

        Raises ConfigError for a value that is not published.
        """
        style: Style = "factor" if self.over is not None else STYLES[METRICS[self.metric]]
        if self.combine == "knee":
            style = "knee"
        elif self.combine in ("spread", "growth"):
            style = "percent" if self.combine == "spread" else "factor"
        as_written = ("id", "figure", "metric", "of", "over", "each", "needs", "settled", "peak", "because")
        style = self.style or style
        tolerance = self.tolerance.model_dump(exclude_none=True) if self.tolerance else {}
        low, high = self._published(values)
        bound = Bound(self.bound, low, self.shown, until=high if high > low else None, **tolerance)
        return Definition(
            **{name: getattr(self, name) for name in as_written},
            claim=Template(self.text).safe_substitute(paper=bound.number(style)),
            source=f"{source}, {self.section}",
            combine=self.combine or "",
            bound=bound,
            style=style,
            conflict=self.conflict or self._conflicts(values),
        )

    def _published(self, values: str) -> tuple[float, float]:
        """Return the least and the greatest value that the paper gives; for one of them twice that one."""
        if not isinstance(self.paper, _PublishedRatio):
            return self._numbers(self.paper, values)
        above, below = (self._numbers(part, values) for part in self.paper.ratio)
        if min(above + below) <= 0:
            raise ConfigError(f"paper.ratio={self.paper.ratio}: expected two numbers above 0")
        return above[0] / below[1], above[1] / below[0]

    def _numbers(self, value: _Value, values: str) -> tuple[float, float]:
        if not isinstance(value, str):
            return value, value
        try:
            found = papers.find_values(f"{values}/{value}" if values else value)
        except ResultsError as error:
            raise ConfigError(f"paper={value!r}: expected {_PAPER} ({error})") from error
        if isinstance(found, Mapping):
            raise ConfigError(f"paper={value!r}: expected {_PAPER}; it has {found}")
        low, high = papers.low(found), papers.high(found)
        return (high, high) if self.bound in ("at_most", "below") else (low, high if self.bound == "within" else low)

    def _conflicts(self, values: str) -> str:
        """Return where the paper contradicts the claim's value. Of a ratio, the claim has a conflict of its own."""
        if not isinstance(self.paper, str):
            return ""
        return papers.find_conflict(f"{values}/{self.paper}" if values else self.paper)
