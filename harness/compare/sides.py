"""A side of a comparison: results folders with their rows, and how two sides are unlike each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from harness.config.specs import Experiment
from harness.errors import ResultsError
from harness.report.summary import LoaderGroup, summarise
from harness.results.files import COLLECT, read_json
from harness.results.folder import RunFolder, RunManifest
from harness.results.provenance import Provenance, list_facts
from harness.results.reader import Results, read_results

KINDS: Final = (
    "data",
    "machine",
    "packages",
    "environment",
    "testbed",
    "sensors",
    "rules",
    "accelerator",
    "step",
    "size",
)
"""What two sides have alike, unless it is accepted that they do not."""
_SECTIONS: Final = {
    "host": "machine",
    "installed": "packages",
    "packages": "packages",
    "environment": "environment",
    "testbed": "testbed",
    "energy": "sensors",
}


class Key(NamedTuple):
    """What a row is of."""

    workload: str
    regime: str
    loader: str


@dataclass(frozen=True)
class Side:
    """One side: folders of runs of the same experiment."""

    name: str
    runs: Sequence[Results]

    @classmethod
    def read(cls, folders: Sequence[Path], name: str = "") -> Side:
        """Read the folders; raises ResultsError for one that cannot be read, or that has no rows."""
        runs = [read_results(folder) for folder in folders]
        for run in runs:
            if not run.rows:
                raise ResultsError(f"{run.folder}: has no rows to compare; expected a run with measured epochs")
        return cls(name or ", ".join(run.folder.name for run in runs), runs)

    @cached_property
    def _groups(self) -> list[dict[Key, LoaderGroup]]:
        return [
            {Key(one.workload, one.regime, one.loader): one for one in summarise(run) if one.measured}
            for run in self.runs
        ]

    @cached_property
    def keys(self) -> list[Key]:
        """What all folders have rows of, in the order of the config; the bound that reads nothing is left out."""
        bounds = set(self.runs[0].bounds)
        return [
            key for key in self._groups[0] if all(key in each for each in self._groups) and key.loader not in bounds
        ]

    @cached_property
    def untrusted(self) -> set[Key]:
        """Those whose rows are invalid in a folder."""
        return {key for key in self.keys if not all(each[key].trusted for each in self._groups)}

    def values(self, metric: str) -> dict[Key, list[dict[int, list[float]]]]:
        """Return settled epochs' seconds, or measured joules, by row: of each folder, by repeat.

        Rows whose joules are unknown or an estimate are left out.
        """
        found = {}
        for key in self.keys:
            if metric == "joules" and any(each[key].estimated or each[key].drawn_j is None for each in self._groups):
                continue
            found[key] = [_by_repeat(each[key], metric) for each in self._groups]
        return found

    def typical(self, metric: str) -> float | None:
        """Return how far cells usually lie apart in a side of one run, as `find_typical` does."""
        groups = self._groups[0].values()
        of = "duration_s" if metric == "seconds" else "drawn_j"
        return next((one.typical.get(of) for one in groups), None) if len(self.runs) == 1 else None

    def alternates_with(self, other: Side) -> bool:
        """Whether the folders of the two sides were measured in turns, so that each is a pair with one of the other."""
        if len(self.runs) != len(other.runs) or len(self.runs) < 2:
            return False
        own, theirs = (sorted(run.started_utc for run in side.runs) for side in (self, other))
        return all(max(before) < min(after) for before, after in pairwise(zip(own, theirs, strict=True)))

    def facts(self) -> dict[str, dict[str, str]]:
        """Return what the folders of the side have in common, by kind; a fact that differs within it is "several"."""
        found: dict[str, dict[str, str]] = {}
        for run in self.runs:
            for kind, facts in _facts(run).items():
                known = found.setdefault(kind, {})
                for name, value in facts.items():
                    known[name] = value if known.get(name, value) == value else "several"
        return found


def _by_repeat(group: LoaderGroup, metric: str) -> dict[int, list[float]]:
    cells: dict[int, list[float]] = {}
    for row in group.rows:
        value = row.duration_s if metric == "seconds" else row.drawn_j
        if value is not None:
            cells.setdefault(row.repeat, []).append(value)
    return cells


def list_unlike(before: Side, after: Side) -> dict[str, list[str]]:
    """Return the differences of two sides that change a measurement, by kind of KINDS."""
    own, other = before.facts(), after.facts()
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        first, second = own.get(kind, {}), other.get(kind, {})
        lines = [
            f"{name}: {first.get(name, 'absent')} and {second.get(name, 'absent')}"
            for name in sorted(first.keys() | second.keys())
            if first.get(name) != second.get(name)
        ]
        if lines:
            found[kind] = lines
    return found


def list_subjects(before: Side, after: Side) -> list[str]:
    """Return the code and the loaders' settings in which the sides differ, and which are compared."""
    own, other = (side.facts()["subject"] for side in (before, after))
    return [
        f"{name}: {own.get(name, 'absent')} and {other.get(name, 'absent')}"
        for name in sorted(own.keys() | other.keys())
        if own.get(name) != other.get(name)
    ]


def _facts(run: Results) -> dict[str, dict[str, str]]:
    """Return what a run was measured with, by kind."""
    last: Provenance = list(run.sessions.values())[-1] if run.sessions else {}
    found: dict[str, dict[str, str]] = {kind: {} for kind in (*KINDS, "subject")}
    for section, fields in last.items():
        kind = _SECTIONS.get(section)
        if kind is not None and fields:
            found[kind].update(list_facts({section: fields}))
    code = {name: str(last.get("source", {}).get(name, {}).get("value", "")) for name in ("commit", "code_sha256")}
    found["subject"].update({f"code.{name}": value for name, value in code.items() if value})
    found["data"] = {
        name: str(last["dataset"][name]["value"])
        for name in ("content_hash", "samples", "bytes")
        if name in last.get("dataset", {})
    }
    found["rules"] = dict(_rules(run))
    found["accelerator"] = {"steps": "; ".join(sorted({row.accelerator for row in run.rows}))}
    experiment = run.experiment
    found["step"] = {f"workloads.{name}": _text(spec.model_dump()) for name, spec in experiment.workloads.items()}
    found["size"] = {"epochs": str(experiment.epochs), "seed": str(experiment.seed)}
    for name, regime in experiment.regimes.items():
        found["testbed"] |= {f"regimes.{name}": _text(regime.model_dump())}
    for name, loader in experiment.loaders.items():
        found["subject"] |= _flatten(f"loaders.{name}", loader.model_dump())
    return found


def _rules(run: Results) -> Iterator[tuple[str, str]]:
    manifest = RunFolder(run.folder).manifest
    if manifest.exists():
        yield "edition", str(read_json(manifest, RunManifest, COLLECT).rules_edition)
    checks: Experiment = run.experiment
    for name, value in checks.checks.model_dump().items():
        yield f"checks.{name}", str(value)


def _flatten(name: str, value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {full: text for key, one in value.items() for full, text in _flatten(f"{name}.{key}", one).items()}
    return {name: _text(value)}


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(one)}" for key, one in value.items() if one not in (None, "", (), [], {}))
    return str(value)
