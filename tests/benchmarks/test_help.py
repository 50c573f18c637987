from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (REPO / "benchmarks").glob("*.py") if "make_parser(__doc__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_every_benchmark_starts_and_says_what_it_takes(script: Path) -> None:
    # As a user starts it: its folder, where a file has the name of a package of ours, comes first on Python's path.
    run = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False, cwd=REPO)
    assert run.returncode == 0, run.stderr
    assert "--quick" in run.stdout
