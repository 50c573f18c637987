"""Compares the reports that two revisions make of the same results folders.

    python tests/report/compare_reports.py --revision main~20 results/2026-01-01T10-00-00.000Z_smoke ...

Each folder is copied twice. The code of the revision judges and draws the first copy, the checked-out code the second.
The folders themselves stay as they are. Equal are: the text of claims.json, epochs.csv, metrics.csv and checks.json,
and each figure: the text of its SVG, or else every pixel of its PNG to one grey level.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("claims.json", "epochs.csv", "metrics.csv", "checks.json")
COLLECT = "import sys, pathlib, harness.results.collect as c; c.collect(c.RunFolder(pathlib.Path(sys.argv[1])))"
COMMANDS = {"collect": ("-c", COLLECT), "harness.report": ("-m", "harness.report")}


def main() -> int:
    """Print a line for each output that differs; returns 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="results folders, each of one run")
    parser.add_argument("--revision", default="HEAD", help="git revision to compare with (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="compare report.html too")
    parser.add_argument("--keep", type=Path, help="empty or new folder that keeps the copies (default: none)")
    arguments = parser.parse_args()
    texts = (*TEXTS, "report.html") if arguments.page else TEXTS
    different = 0
    with tempfile.TemporaryDirectory(prefix="compare-reports-") as scratch, worktree(arguments.revision) as old:
        for folder in map(Path.resolve, arguments.folders):
            found, compared = compare(folder, old, arguments.keep or Path(scratch), texts)
            print(f"{folder}: {compared} outputs compared, {len(found)} differ", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
            different += len(found)
    return 1 if different else 0


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Check a revision out in a temporary git worktree, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="compare-reports-code-") as scratch:
        path = Path(scratch) / "code"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def compare(folder: Path, old: Path, scratch: Path, texts: tuple[str, ...]) -> tuple[list[str], int]:
    """Return what differs, and how many outputs were compared."""
    sides = {side: scratch / side / folder.parent.name / folder.name for side in ("before", "after")}
    statuses = {}
    for side, code in (("before", old), ("after", ROOT)):
        shutil.copytree(folder, sides[side], symlinks=True)
        shutil.rmtree(sides[side] / "figures", ignore_errors=True)
        statuses[side] = [run(code, command, sides[side]) for command in COMMANDS]
    found = [
        f"{command}: status {before} before, {after} after"
        for command, before, after in zip(COMMANDS, statuses["before"], statuses["after"], strict=True)
        if before != after
    ]
    figures = sorted({path.name for side in sides.values() for path in (side / "figures").glob("*.svg")})
    for name in texts:
        before, after = (text(side / name) for side in sides.values())
        if before is None or before.replace(str(sides["before"]), "") != (after or "").replace(str(sides["after"]), ""):
            found.append(f"{name}: {difference(before, after)}")
    for name in figures:
        before, after = (text(side / "figures" / name) for side in sides.values())
        if before != after and (levels := grey_levels(*(side / "figures" / name for side in sides.values()))) != 0:
            found.append(f"figures/{name}: {difference(before, after)}; the pictures differ {levels}")
    return found, len(texts) + len(figures) + len(COMMANDS)


def run(code: Path, command: str, folder: Path) -> int:
    """Run one command of a checkout on a results folder; returns its exit status, and prints what an error says."""
    argv = [sys.executable, *COMMANDS[command], str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(code), "COLUMNS": "160"}
    done = subprocess.run(argv, cwd=code, env=environment, capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr or (done.stderr and command == "harness.report"):
        print(f"{command} ({code}):\n{done.stderr}", file=sys.stderr)
    return done.returncode


def text(path: Path) -> str | None:
    """Return a file's text; None where the file is missing."""
    return path.read_text(encoding="utf-8") if path.exists() else None


def difference(before: str | None, after: str | None) -> str:
    """Return the first line that differs."""
    if before is None or after is None:
        return "missing " + ("on both sides" if before == after else "before" if before is None else "after")
    old, new = before.splitlines(), after.splitlines()
    for number, (one, other) in enumerate(zip(old, new, strict=False), 1):
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            start = max(0, at - 60)
            return f"line {number}: {one[start : at + 100]!r} became {other[start : at + 100]!r}"
    return f"{len(old)} lines before, {len(new)} after"


def grey_levels(before: Path, after: Path) -> int | str:
    """Return 0 where the PNGs beside two SVGs differ by one grey level at most, else what differs."""
    pngs = [path.with_suffix(".png") for path in (before, after)]
    if not all(path.exists() for path in pngs):
        return "(one is missing)"
    one, other = (np.asarray(Image.open(path).convert("RGB"), dtype=np.int16) for path in pngs)
    if one.shape != other.shape:
        return f"in size: {one.shape} and {other.shape}"
    worst = int(np.abs(one - other).max())
    return 0 if worst <= 1 else f"by {worst} grey levels"


if __name__ == "__main__":
    sys.exit(main())
