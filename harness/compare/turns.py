"""Measures two versions in turns: a run of one repeat of each, again and again, in both orders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.validation import quote_value
from harness.errors import BROKEN_FIGURE, INVALID_ROWS, CellError, ConfigError
from harness.results.files import RUN, read_json, write_json
from harness.results.folder import RunFolder
from harness.results.provenance import hash_code
from harness.system.program import run_harness


@dataclass(frozen=True, slots=True)
class Version:
    """What one side of a comparison runs: a checkout, with what its command line has beside the experiment."""

    checkout: Path
    overrides: Sequence[str] = ()


def measure_in_turns(
    baseline: Version, candidate: Version, experiment: Sequence[str], turns: int, out: Path
) -> tuple[list[Path], list[Path]]:
    """Run the experiment in so many turns of both versions, into `out`; returns the folders of each.

    A turn that was measured already is kept, so that the same command goes on after an interruption. Raises ConfigError
    for a folder that is no checkout, and for an `out` with turns of something else, CellError where a run is not whole.
    """
    versions = (baseline, candidate)
    for version in versions:
        if not (version.checkout / "harness").is_dir():
            raise ConfigError(f"{version.checkout}: has no harness/; expected a checkout of joulefeed")
    _require_the_same(
        out / "turns.json",
        {
            "experiment": [*experiment],
            "overrides": [[*version.overrides] for version in versions],
            "code": [hash_code(version.checkout) for version in versions],
        },
    )
    folders: tuple[list[Path], list[Path]] = ([], [])
    for turn in range(turns):
        # The side that goes second is warmer: each goes second as often.
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            name = out / f"{('baseline', 'candidate')[side]}-{turn + 1}"
            folders[side].append(_measure(versions[side], experiment, name))
    return folders


def _require_the_same(file: Path, wanted: dict[str, object]) -> None:
    """Store the measured versions in a folder; raise ConfigError where it holds turns of something else."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and (stored := read_json(file, dict[str, object], RUN)) != wanted:
        differs = ", ".join(key for key in wanted if stored.get(key) != wanted[key])
        raise ConfigError(f"{file.parent}: has turns of another {differs}; name another --out, or remove the folder")
    write_json(file, wanted)


def _measure(version: Version, experiment: Sequence[str], results: Path) -> Path:
    found = _find_whole(results)
    if found is None:
        print(f"{results.parent.name}: {results.name}", file=sys.stderr)
        words = [*experiment, *version.overrides, "repeats=1", f"results_dir={quote_value(str(results.resolve()))}"]
        environment = {**os.environ, "PYTHONPATH": str(version.checkout.resolve())}
        status = run_harness(words, subprocess.DEVNULL, cwd=version.checkout, env=environment)
        found = _find_whole(results)
        if found is None or status not in (0, INVALID_ROWS, BROKEN_FIGURE):
            raise CellError(
                f"{results}: the run ended with status {status}, and is not whole; try the same command again"
            )
    return found


def _find_whole(results: Path) -> Path | None:
    """Return the newest whole run of a folder; None without one."""
    runs = [RunFolder(plan.parent) for plan in sorted(results.glob("*_*/plan.json"))]
    return next((run.folder for run in reversed(runs) if run.is_whole), None)
