"""A claim as a YAML of `conf/claims/` has it, checked; docs/claims.md tells the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from harness.errors import ResultsError
from harness.report import papers
from harness.report.claims.metrics import METRICS
from harness.report.claims.words import BOUNDS, COMBINE, STYLES, Bound, Style
from harness.report.reading import reading

__all__ = ["Definition", "Needs", "Values", "definitions", "packaged", "read_claims"]

SELECTORS: Final = ("workload", "loader", "regime", "rtt_ms", "samples")
"""Columns of a row by which it is selected; and the config's own keys behind one of `SECTIONS` and a dot."""
SECTIONS: Final = ("workload", "loader", "accelerator", "dataset")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run must be for a claim to be judged on it."""

    accelerator: str = "any"
    """real: something is computed | emulated: there is a step, of whatever kind | any: also without any step."""
    devices: int = 1
    """Accelerators."""


@dataclass(frozen=True, slots=True)
class Values:
    """Which values of a key a claim runs over: these, those between two of them, or where neither is given all."""

    key: str
    listed: tuple[Any, ...] = ()
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
    of: Mapping[str, Any]
    """Which rows, by column or config key."""
    bound: Bound
    over: Mapping[str, Any] | None = None
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
    """What is known to make a difference here; told where the claim fails."""


@lru_cache(maxsize=4)
def definitions(folder: Path | None = None) -> tuple[Definition, ...]:
    """Return the claims of every paper; of the YAML files of a folder, by default the package's own."""
    home = folder or packaged()
    return tuple(one for path in sorted(home.glob("*.yaml")) for one in read_claims(path))


def packaged() -> Path:
    """Return where this project's claims lie."""
    return Path(str(files("conf") / "claims"))


def read_claims(path: Path) -> tuple[Definition, ...]:
    """Read the claims of one paper; raises ResultsError naming the file, the claim and the key that is wrong."""
    with reading(path, "docs/claims.md has what claims look like"):
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    whole = _Section(str(path), stored)
    whole.known("paper", "claims")
    paper = whole.text("paper")
    values = paper if paper in papers.names() else ""
    source = papers.paper(paper).citation if values else paper
    found: list[Definition] = []
    for number, entry in enumerate(whole.listed("claims"), 1):
        name = entry.get("id", f"number {number}") if isinstance(entry, Mapping) else f"number {number}"
        found.append(_definition(_Section(f"{path}, claim {name}", entry), source, values))
    twice = [one.id for one in found if [other.id for other in found].count(one.id) > 1]
    if twice:
        raise ResultsError(f"{path}: id {twice[0]} is there twice; each claim has one of its own")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Section:
    """A mapping of a YAML, and where it stands."""

    where: str
    stored: Any

    def __post_init__(self) -> None:
        if not isinstance(self.stored, Mapping):
            raise ResultsError(f"{self.where}: expected keys and values, got {self.stored!r}")

    def known(self, *names: str) -> None:
        """Refuse keys that there are none of."""
        for key in self.stored:
            if key not in names:
                raise ResultsError(f"{self.where}: unknown key {key!r}; expected some of {', '.join(names)}")

    def get(self, name: str, kind: type | tuple[type, ...], expected: str, default: Any = None) -> Any:
        value = self.stored.get(name, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ResultsError(f"{self.where}: {name}={value!r}: expected {expected}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value: str = self.get(name, str, "text", default)
        return value

    def one_of(self, name: str, known: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(name, default)
        if value not in known:
            raise ResultsError(f"{self.where}: {name}={value!r}: expected one of {', '.join(known)}")
        return value

    def listed(self, name: str) -> list[Any]:
        value: list[Any] = self.get(name, list, "a list")
        return value

    def part(self, name: str) -> _Section | None:
        value = self.stored.get(name)
        return None if value is None else _Section(f"{self.where}: {name}", value)


_KEYS: Final = (
    *("id", "figure", "text", "section", "metric", "of", "over", "each", "combine", "is", "paper", "tolerance"),
    *("shown", "as", "needs", "settled", "peak", "because"),
)


def _definition(entry: _Section, source: str, values: str) -> Definition:
    entry.known(*_KEYS)
    metric = entry.one_of("metric", tuple(METRICS))
    over, each = entry.part("over"), entry.part("each")
    combine = entry.one_of("combine", COMBINE) if each else ""
    if each is None and "combine" in entry.stored:
        raise ResultsError(f"{entry.where}: combine without each: there is one value")
    return Definition(
        id=entry.text("id"),
        figure=entry.text("figure"),
        claim=entry.text("text"),
        source=f"{source}, {entry.text('section')}",
        metric=metric,
        of=_selection(_Section(f"{entry.where}: of", entry.stored.get("of", {}))),
        over=None if over is None else _selection(over),
        each=None if each is None else _values(each),
        combine=combine,
        bound=_bound(entry, values),
        style=_style(entry, metric, combine, divided=over is not None),
        needs=_needs(entry.part("needs")),
        settled=entry.get("settled", bool, "true or false", False),
        peak=entry.get("peak", bool, "true or false", False),
        because=entry.text("because", ""),
    )


def _selection(section: _Section) -> Mapping[str, Any]:
    for key in section.stored:
        _check_selector(section, str(key))
    return {str(key): value for key, value in section.stored.items()}


def _check_selector(section: _Section, key: str) -> None:
    part, dot, name = key.partition(".")
    if key in SELECTORS or (dot and name and part in SECTIONS):
        return
    raise ResultsError(
        f"{section.where}: unknown key {key!r}; expected {', '.join(SELECTORS)}, or a key of the config such as "
        "loader.num_workers"
    )


def _values(section: _Section) -> Values:
    if len(section.stored) != 1:
        raise ResultsError(f"{section.where}: expected one key, got {len(section.stored)}")
    ((key, value),) = section.stored.items()
    _check_selector(section, str(key))
    if value == "all":
        return Values(str(key))
    if isinstance(value, list) and value:
        return Values(str(key), listed=tuple(value))
    ends = _Section(f"{section.where}: {key}", value)
    ends.known("from", "to")
    return Values(str(key), between=(_number(ends, "from"), _number(ends, "to")))


def _number(section: _Section, name: str) -> float:
    return float(section.get(name, (int, float), "a number"))


def _bound(entry: _Section, values: str) -> Bound:
    tolerance = entry.part("tolerance")
    kinds = tuple(one.name for one in fields(Bound) if one.name in {"relative", "absolute", "factor"})
    allowed: dict[str, float] = {}
    if tolerance is not None:
        tolerance.known(*kinds)
        if len(tolerance.stored) != 1:
            raise ResultsError(f"{tolerance.where}: expected one of {', '.join(kinds)}")
        allowed = {str(name): _number(tolerance, name) for name in tolerance.stored}
        if min(allowed.values()) < (1 if "factor" in allowed else 0):
            raise ResultsError(f"{tolerance.where}: {allowed}: expected a factor of 1 or more, or a share from 0 on")
    kind = entry.one_of("is", BOUNDS)
    return Bound(kind, _paper(entry, kind, values), entry.text("shown", ""), **allowed)


def _paper(entry: _Section, kind: str, values: str) -> float:
    stored = entry.stored.get("paper")
    if not isinstance(stored, Mapping):
        return _published(entry, "paper", stored, kind, values)
    quotient = _Section(f"{entry.where}: paper", stored)
    quotient.known("ratio")
    parts = [_published(quotient, "ratio", part, kind, values) for part in quotient.listed("ratio")]
    if len(parts) != 2 or min(parts) <= 0:
        raise ResultsError(f"{quotient.where}: ratio={stored['ratio']}: expected two numbers above 0")
    return parts[0] / parts[1]


def _published(section: _Section, name: str, value: object, kind: str, values: str) -> float:
    """Return a number, or the published value of that id; of a range the end that `kind` compares with."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    expected = f"{section.where}: {name}={value!r}: expected a number, or a published value such as fig5_spread"
    if not isinstance(value, str):
        raise ResultsError(expected)
    try:
        found = papers.tree(f"{values}/{value}" if values else value)
    except ResultsError as error:
        raise ResultsError(f"{expected} ({error})") from error
    if isinstance(found, Mapping) or (isinstance(found, tuple) and kind == "within"):
        raise ResultsError(f"{expected}; it has {found}")
    return papers.high(found) if kind == "at_most" else papers.low(found)


def _style(entry: _Section, metric: str, combine: str, *, divided: bool) -> Style:
    if "as" in entry.stored:
        return entry.one_of("as", get_args(Style))  # type: ignore[return-value]
    if combine == "knee":
        return "knee"
    if combine == "spread":
        return "percent"
    return "factor" if divided else STYLES[METRICS[metric]]


def _needs(section: _Section | None) -> Needs:
    if section is None:
        return Needs()
    section.known("accelerator", "devices")
    devices = section.get("devices", int, "a whole number", 1)
    return Needs(section.one_of("accelerator", ("real", "emulated", "any"), "any"), devices)
