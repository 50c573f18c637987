"""Measures two versions in turns: a run of one repeat of each, again and again, in both orders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import CellError, ConfigError
from joulefeed.signals import interrupted


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
    for a folder that is no checkout, CellError where a run fails.
    """
    for version in (baseline, candidate):
        if not (version.checkout / "harness").is_dir():
            raise ConfigError(f"{version.checkout}: holds no harness/; expected a checkout of joulefeed, or a config")
    folders: tuple[list[Path], list[Path]] = ([], [])
    for turn in range(turns):
        # The side that goes second is warmer: each goes second as often.
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            name = out / f"{('baseline', 'candidate')[side]}-{turn + 1}"
            folders[side].append(_measure((baseline, candidate)[side], experiment, name))
    return folders


def _measure(version: Version, experiment: Sequence[str], results: Path) -> Path:
    found = _finished(results)
    if found is None:
        print(f"{results.parent.name}: {results.name}", file=sys.stderr)
        command = [sys.executable, "-m", "harness", *experiment, *version.overrides, "repeats=1"]
        command += [f"results_dir={results.resolve()}"]
        environment = {**os.environ, "PYTHONPATH": str(version.checkout.resolve())}
        done = subprocess.run(command, cwd=version.checkout, env=environment, stdout=subprocess.DEVNULL, check=False)
        found = _finished(results)
        if interrupted() is not None or found is None:
            raise CellError(f"{' '.join(command)} ended with status {done.returncode}, and its run is not whole")
    return found


def _finished(results: Path) -> Path | None:
    """Return the folder of a run that is whole; None without one."""
    whole = [folder for folder in sorted(results.glob("*_*")) if (folder / "report.html").exists()]
    return whole[-1] if whole else None
