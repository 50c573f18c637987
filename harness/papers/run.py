"""Runs the experiments of papers one after the other, and goes on where an earlier run ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.validation import quote_value
from harness.errors import ConfigError, ResultsError
from harness.papers.items import find_partial, find_runs, list_experiments
from harness.report.papers import Paper
from harness.system.program import run_harness


@dataclass(frozen=True, slots=True)
class Ended:
    """How an experiment ended."""

    experiment: str
    status: int
    seconds: float


def run_papers(papers: Mapping[str, Paper], out: Path, scale: str, only: Sequence[str] = ()) -> list[Ended]:
    """Run every experiment that has no whole run in `out`; returns how each ended.

    One that was interrupted is resumed, or started again where code or configuration are others now. One that fails is
    left behind, and the others go on. Raises ConfigError for a name that is no experiment of these papers.
    """
    every = list_experiments(papers)
    if unknown := sorted(set(only) - set(every)):
        raise ConfigError(f"--experiments {' '.join(unknown)}: expected some of {', '.join(every)}")
    out.mkdir(parents=True, exist_ok=True)
    expected = {item.experiment: item.minutes for paper in papers.values() for item in paper.items if item.minutes}
    wanted = [name for name in every if not only or name in only]
    whole = find_runs([out], scale)
    left = [name for name in wanted if name not in whole]
    ended: list[Ended] = []
    for place, name in enumerate(left, 1 + len(wanted) - len(left)):
        rest = sum(expected.get(one, 0.0) for one in left[len(ended) :])
        about = f": about {rest:.0f} minutes left" if scale == "small" else ""
        print(f"[{place}/{len(wanted)}] {name}{about}", file=sys.stderr, flush=True)
        began = time.monotonic()
        ended.append(Ended(name, _run(name, out, scale), time.monotonic() - began))
    return ended


def _run(experiment: str, out: Path, scale: str) -> int:
    partial = find_partial(out, experiment, scale)
    fresh = [f"+experiment={experiment}"] + (["scale=full"] if scale == "full" else [])
    tries = [fresh] if partial is None else [[f"resume={partial.folder.name}"], fresh]
    status = ResultsError.exit_status
    for words in tries:
        with (out / f"{experiment}.txt").open("ab") as report:
            status = run_harness([*words, f"results_dir={quote_value(str(out))}"], report.fileno())
        if status != ResultsError.exit_status:
            break
    return status
