"""Count the lines of the packages, their core, and the tests, beside the most that each may have.

    python tests/sizes.py

Prints a table, and exits with 1 where a limit is exceeded. Lines are those of the files that git knows, blank ones and
comments included.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("joulefeed", "energymon", "loaders", "harness")
LEAVES = (
    "energymon/influx/",
    "harness/__main__.py",
    "harness/report/",
    "harness/advise/",
    "harness/diagnose/",
    "harness/compare/",
    "harness/papers/",
    "harness/run/watch.py",
    "harness/datasets/",
    "harness/workloads/",
    "joulefeed/new.py",
    "loaders/pipeline/",
    "loaders/shared/fixed.py",
    *(f"loaders/{name}/" for name in ("dali", "decord", "mosaic", "nosql", "pecan", "pytorch", "spdl", "tfdata")),
)
"""What may grow without anybody reading it: figures, claims, generators, models, adapters of other systems."""
BASES = (
    *(
        f"harness/datasets/{name}.py"
        for name in ("__init__", "cache", "generate", "placement", "scan", "tree", "worker")
    ),
    *(
        f"harness/workloads/{name}.py"
        for name in ("__init__", "accelerator", "base", "emulated", "gradients", "overlap")
    ),
    *(f"harness/workloads/{name}.py" for name in ("published", "training")),
    "loaders/pipeline/__init__.py",
    "loaders/pipeline/callables.py",
    "loaders/pipeline/image.py",
)
"""Files in the leaves' folders that say what a leaf is and run it; they belong to the core."""
MAX_LINES = {
    "packages": 73_633,
    "core": 47_824,
    "tests": 47_829,
    "loaders/sample_aware": 3_950,
    "loaders/streaming, loaders/records": 7_600,
}
"""Lower a limit when a part has become smaller. A change that needs more is a reason to look for what can go."""
MAX_ENTRIES = 15
"""What the listing of a folder may have."""
MAX_WALK = 16
"""Files on a walk of docs/architecture.md."""


def files_of(*folders: str) -> list[str]:
    """Return the Python files of folders that git knows, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name.endswith(".py") and (ROOT / name).exists()]


def is_leaf(file: str) -> bool:
    """Whether a file of the packages belongs to the leaves."""
    return file.startswith(LEAVES) and file not in BASES


def lines_of(files: list[str]) -> int:
    return sum((ROOT / file).read_bytes().count(b"\n") for file in files)


def count() -> dict[str, int]:
    """Return the lines of each part that has a limit."""
    packages = files_of(*PACKAGES)
    return {
        "packages": lines_of(packages),
        "core": lines_of([file for file in packages if not is_leaf(file)]),
        "tests": lines_of(files_of("tests")),
        "loaders/sample_aware": lines_of(files_of("loaders/sample_aware")),
        "loaders/streaming, loaders/records": lines_of(files_of("loaders/streaming", "loaders/records")),
    }


def listings() -> dict[str, list[str]]:
    """Return the entries of each folder of the packages, without those that every folder has."""
    found: dict[str, set[str]] = {}
    for file in files_of(*PACKAGES):
        parts = Path(file).parts
        for depth in range(1, len(parts)):
            name = parts[depth]
            if not name.startswith("__"):
                found.setdefault("/".join(parts[:depth]), set()).add(name)
    return {folder: sorted(names) for folder, names in found.items()}


def main() -> int:
    """Print the table; return the exit status."""
    exceeded = False
    for part, lines in count().items():
        exceeded |= lines > MAX_LINES[part]
        print(f"{part:40}{lines:8,} of {MAX_LINES[part]:,}{'  EXCEEDED' if lines > MAX_LINES[part] else ''}")
    for package in PACKAGES:
        rooms = sorted({"/".join(Path(file).parts[:2]) for file in files_of(package)})
        print(f"\n{package}{lines_of(files_of(package)):{40 - len(package)},}")
        for room in rooms:
            print(f"  {room:36}{lines_of(files_of(room)):8,}")
    for folder, names in listings().items():
        if len(names) > MAX_ENTRIES:
            exceeded = True
            print(f"\n{folder}: {len(names)} entries of {MAX_ENTRIES}: {', '.join(names)}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
