"""The items of the papers, and what the last run of each found here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from harness.config import list_packaged
from harness.errors import ConfigError
from harness.report.claims.reader import make_definitions
from harness.report.papers import Paper, PaperItem, read_paper
from harness.results.files import RUN, read_json
from harness.results.folder import Ledger, RunFolder

MARKS: Final = {"PASS": "✓", "FAIL": "✗", "INCONCLUSIVE": "≈", "NOT CHECKED": "–"}
_NO_PAPER: Final = PaperItem(item="A/A", experiment="aa", minutes=3)
"""A loader compared with itself: run first, for it says whether the machine can compare anything."""


@dataclass(frozen=True)
class PaperRun:
    """A whole run of an experiment."""

    run: RunFolder

    @cached_property
    def claims(self) -> Sequence[Mapping[str, Any]]:
        """Its claims, as claims.json has them."""
        return tuple(read_json(self.run.claims, list[dict[str, Any]], RUN))

    @property
    def started_utc(self) -> str:
        """When it began."""
        return min((entry.t_utc for entry in Ledger(self.run.ledger).read_entries()), default="")

    @property
    def minutes(self) -> float:
        """From the first entry of its ledger to the last one."""
        times = [datetime.fromisoformat(entry.t_utc) for entry in Ledger(self.run.ledger).read_entries()]
        return (max(times) - min(times)).total_seconds() / 60 if times else 0.0

    @property
    def commit(self) -> str:
        """The commit that it ran; empty where it is not known."""
        sessions = list(self.run.read_sessions().values())
        return str(sessions[-1].get("source", {}).get("commit", {}).get("value", ""))[:7] if sessions else ""

    def claims_of(self, figure: str) -> list[Mapping[str, Any]]:
        """Return the claims that belong to a figure."""
        ids = {one.id for one in make_definitions() if one.figure == figure}
        return [claim for claim in self.claims if claim["id"] in ids]


def list_papers(name: str | None = None) -> dict[str, Paper]:
    """Return the papers by name, or one of them. Raises ConfigError for a name that is none."""
    names = list(list_packaged("papers"))
    if name is not None and name not in names:
        raise ConfigError(f"--paper {name}: expected one of {', '.join(names)}")
    return {one: read_paper(one) for one in ([name] if name else names)}


def list_experiments(papers: Mapping[str, Paper]) -> list[str]:
    """Return the experiments of papers, each once, and the one that is run first."""
    wanted = [item.experiment for paper in papers.values() for item in paper.items if item.experiment]
    return list(dict.fromkeys([_NO_PAPER.experiment, *wanted]))


def find_runs(places: Sequence[Path], scale: str) -> dict[str, PaperRun]:
    """Return the newest whole run of each experiment in results folders."""
    found: dict[str, PaperRun] = {}
    for run in sorted(_list_runs(places), key=lambda run: run.folder.name):
        if run.claims.exists() and str(run.read_config().get("scale", "small")) == scale:
            found[run.read_plan().experiment] = PaperRun(run)
    return found


def find_partial(place: Path, experiment: str, scale: str) -> RunFolder | None:
    """Return the newest run of an experiment that is not whole; None where there is none, or a whole one is newer."""
    runs = [
        run
        for run in _list_runs([place])
        if run.read_plan().experiment == experiment and str(run.read_config().get("scale", "small")) == scale
    ]
    newest = max(runs, key=lambda run: run.folder.name, default=None)
    return newest if newest is not None and not newest.claims.exists() else None


def _list_runs(places: Sequence[Path]) -> Iterator[RunFolder]:
    for place in places:
        for plan in place.glob("*/plan.json"):
            if not plan.parent.is_symlink():
                yield RunFolder(plan.parent)


def count_verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return claims counted by verdict: 3✓ 1✗ 2–; empty without any."""
    counts = Counter(str(claim["verdict"]) for claim in claims)
    return " ".join(f"{counts[verdict]}{mark}" for verdict, mark in MARKS.items() if counts[verdict])


def dump(value: object) -> str:
    """Return a value as stable JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
