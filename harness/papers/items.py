"""The items of the papers, and what the last run of each found here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from harness.config import list_packaged
from harness.errors import ConfigError
from harness.report.claims.bound import MARKS
from harness.report.claims.reader import make_definitions
from harness.report.papers import Paper, PaperItem, read_paper
from harness.results.files import RUN, read_json
from harness.results.folder import Ledger, RunFolder

_NO_PAPER: Final = PaperItem(item="A/A", experiment="aa", minutes=3)
"""A loader compared with itself: run first, for it says whether the machine can compare anything."""


@dataclass(frozen=True)
class PaperRun:
    """A whole run of an experiment, or the kept part of one."""

    run: RunFolder

    @cached_property
    def claims(self) -> Sequence[Mapping[str, Any]]:
        """Its claims, as claims.json has them."""
        return tuple(read_json(self.run.claims, list[dict[str, Any]], RUN))

    def claims_of(self, figure: str) -> list[Mapping[str, Any]]:
        """Return the claims that belong to a figure."""
        ids = {one.id for one in make_definitions() if one.figure == figure}
        return [claim for claim in self.claims if claim["id"] in ids]

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """When it began, the minutes that its cells took, its commit, and the machine."""
        kept = self.run.folder / "run.json"
        if kept.exists():
            return read_json(kept, dict[str, Any], RUN)
        entries = Ledger(self.run.ledger).read_entries()
        began: dict[str, datetime] = {}
        seconds = 0.0
        for entry in entries:
            at = datetime.fromisoformat(entry.t_utc)
            if entry.event == "started":
                began[entry.cell_id] = at
            elif entry.cell_id in began:
                seconds += (at - began.pop(entry.cell_id)).total_seconds()
        sessions = list(self.run.read_sessions().values())
        last = sessions[-1] if sessions else {}
        source, host = (
            {key: field["value"] for key, field in last.get(part, {}).items()} for part in ("source", "host")
        )
        return {
            "started_utc": min((entry.t_utc for entry in entries), default=""),
            "minutes": round(seconds / 60, 1),
            "commit": str(source.get("commit", "unknown"))[:7] + " and changes" * bool(source.get("changed")),
            "machine": f"{host.get('cpu', 'unknown CPU')}, {host.get('logical_cpus')} processors",
        }


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
    runs = [run for place in places for run in _list_runs(place, scale) if run.is_whole]
    return {run.read_plan().experiment: PaperRun(run) for run in sorted(runs, key=lambda run: run.folder.name)}


def find_partial(place: Path, experiment: str, scale: str) -> RunFolder | None:
    """Return the newest run of an experiment, which has no whole one; None where there is none."""
    runs = [run for run in _list_runs(place, scale) if run.read_plan().experiment == experiment]
    return max(runs, key=lambda run: run.folder.name, default=None)


def _list_runs(place: Path, scale: str) -> Iterator[RunFolder]:
    for plan in place.glob("*/plan.json"):
        run = RunFolder(plan.parent)
        if not plan.parent.is_symlink() and str(run.read_config().get("scale", "small")) == scale:
            yield run


def count_verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return claims counted by verdict: 3✓ 1✗ 2–; empty without any."""
    counts = Counter(str(claim["verdict"]) for claim in claims)
    return " ".join(f"{counts[verdict]}{mark}" for verdict, (mark, _) in MARKS.items() if counts[verdict])
