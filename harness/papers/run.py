"""Runs the experiments of papers one after the other, and goes on where an earlier run ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.papers.items import find_partial, find_runs, list_experiments
from harness.report.papers import Paper


@dataclass(frozen=True, slots=True)
class Ended:
    """How an experiment ended."""

    experiment: str
    status: int
    seconds: float


def run_papers(papers: Mapping[str, Paper], out: Path, scale: str, only: Sequence[str] = ()) -> list[Ended]:
    """Run every experiment that has no whole run in `out`; returns how each ended.

    One that was interrupted is resumed. One that fails is left behind, and the others go on.
    """
    out.mkdir(parents=True, exist_ok=True)
    expected = {item.experiment: item.minutes for paper in papers.values() for item in paper.items}
    every = [name for name in list_experiments(papers) if not only or name in only]
    left = [name for name in every if name not in find_runs([out], scale)]
    ended: list[Ended] = []
    for place, name in enumerate(left):
        rest = sum(expected.get(one, 0.0) for one in left[place:])
        _say(
            f"[{len(every) - len(left) + place + 1}/{len(every)}] {name}: about {rest:.0f} minutes left at scale=small"
        )
        began = time.monotonic()
        status = _run(name, out, scale)
        ended.append(Ended(name, status, time.monotonic() - began))
        if status > 128:
            break
    return ended


def _run(experiment: str, out: Path, scale: str) -> int:
    partial = find_partial(out, experiment, scale)
    words = [f"+experiment={experiment}"] + (["scale=full"] if scale == "full" else [])
    if partial is not None:
        words = [f"resume={partial.folder.name}"]
    command = [sys.executable, "-m", "harness", *words, f"results_dir={out}"]
    with (out / f"{experiment}.txt").open("ab") as report:
        return subprocess.run(command, stdout=report, check=False).returncode


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
