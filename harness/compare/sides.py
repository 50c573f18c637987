"""A side of a comparison: results folders with their rows, and how two sides are unlike each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from harness.config.experiment import flatten_measured
from harness.errors import ResultsError
from harness.report.summary import Compared, LoaderGroup, by_repeat, summarise
from harness.results.epoch_row import EpochRow
from harness.results.files import COLLECT, read_json
from harness.results.folder import RunFolder, RunManifest
from harness.results.provenance import list_facts
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
Metric: TypeAlias = Literal["seconds", "joules"]
_COLUMNS: Final[Mapping[Metric, Compared]] = {"seconds": "duration_s", "joules": "drawn_j"}
_SECTIONS: Final = {
    "host": "machine",
    "installed": "packages",
    "packages": "packages",
    "environment": "environment",
    "testbed": "testbed",
    "energy": "sensors",
}
"""Sections of provenance.json, by kind."""
_PARTS: Final = {
    "dataset": "data",
    "workloads": "step",
    "regimes": "testbed",
    "testbed": "testbed",
    "placement": "testbed",
    "distributed": "testbed",
    "accelerator": "accelerator",
    "energy": "sensors",
    "loaders": "subject",
}
"""Sections of the config, by kind; the others are of "size"."""
_NO_DIFFERENCE: Final = frozenset({"name", "repeats"})
_CODE: Final = ("commit", "changed", "code_sha256")
_DATA: Final = ("content_hash", "samples", "bytes")


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
        return cls(name or ", ".join(run.folder.name for run in runs), sorted(runs, key=lambda run: run.started_utc))

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
        """Those without a valid row in a folder."""
        return {key for key in self.keys if not all(each[key].trusted for each in self._groups)}

    def values(self, metric: Metric) -> dict[Key, list[dict[int, list[float]]]]:
        """Return settled epochs' seconds, or measured joules, by row: of each folder, by repeat.

        Rows whose joules are unknown or an estimate are left out.
        """
        found = {}
        for key in self.keys:
            groups = [each[key] for each in self._groups]
            if metric == "seconds" or not any(one.estimated or one.drawn_j is None for one in groups):
                found[key] = [by_repeat(one, _COLUMNS[metric]) for one in groups]
        return found

    def joules(self, key: Key) -> list[tuple[EpochRow, float]]:
        """Return a row's epochs, and their joules."""
        rows = [row for each in self._groups for row in each[key].rows]
        return [(row, row.drawn_j) for row in rows if row.drawn_j is not None]

    def medians(self) -> dict[Key, float]:
        """Return the seconds of a settled epoch by row, of a side of one folder."""
        return {key: one.time_s.median for key in self.keys if (one := self._groups[0][key]).time_s is not None}

    def typical(self, metric: Metric) -> float | None:
        """Return how far cells usually lie apart in a side of one folder, as `find_typical` does."""
        groups = self._groups[0].values() if len(self.runs) == 1 else ()
        return next((one.typical.get(_COLUMNS[metric]) for one in groups), None)

    def alternates_with(self, other: Side) -> bool:
        """Whether the folders of the two sides were measured in turns, so that each is a pair with one of the other."""
        if len(self.runs) != len(other.runs) or len(self.runs) < 2:
            return False
        pairs = [(a.started_utc, b.started_utc) for a, b in zip(self.runs, other.runs, strict=True)]
        return all(max(before) < min(after) for before, after in pairwise(pairs))

    @cached_property
    def facts(self) -> dict[str, dict[str, str]]:
        """Return what the folders of the side were measured with, by kind, and the code and loaders as "subject".

        A fact has all of its values in the folders, and in the sessions of each.
        """
        values: dict[str, dict[str, set[str]]] = {kind: {} for kind in (*KINDS, "subject")}
        for run in self.runs:
            for kind, name, value in _list_facts(run):
                values[kind].setdefault(name, set()).add(value)
        return {
            kind: {name: " and ".join(sorted(several)) for name, several in facts.items()}
            for kind, facts in values.items()
        }


def list_unlike(before: Side, after: Side) -> dict[str, list[str]]:
    """Return the differences of two sides that change a measurement, by kind of KINDS."""
    own, other = before.facts, after.facts
    return {kind: lines for kind in KINDS if (lines := _differences(own[kind], other[kind]))}


def list_subjects(before: Side, after: Side) -> list[str]:
    """Return the code and the loaders' settings in which the sides differ, and which are compared."""
    return _differences(before.facts["subject"], after.facts["subject"])


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {before.get(name, 'absent')}; {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _list_facts(run: Results) -> Iterator[tuple[str, str, str]]:
    """Yield what a run was measured with: kind, name and value."""
    for session in run.sessions.values():
        for section, fields in session.items():
            kind = _SECTIONS.get(section)
            if kind is not None and fields:
                yield from ((kind, name, value) for name, value in list_facts({section: fields}).items())
        source, data = session.get("source", {}), session.get("dataset", {})
        yield from (("subject", f"code.{name}", str(source[name]["value"])) for name in _CODE if name in source)
        yield from (("data", name, str(data[name]["value"])) for name in _DATA if name in data)
    manifest = RunFolder(run.folder).manifest
    if manifest.exists():
        yield "rules", "edition", str(read_json(manifest, RunManifest, COLLECT).rules_edition)
    yield from (("rules", f"checks.{name}", str(value)) for name, value in run.experiment.checks.model_dump().items())
    yield "accelerator", "steps", "; ".join(sorted({row.accelerator for row in run.rows}))
    for name, value in flatten_measured(RunFolder(run.folder).read_config()).items():
        part = name.partition(".")[0]
        if part not in _NO_DIFFERENCE:
            yield _PARTS.get(part, "size"), name, str(value)
