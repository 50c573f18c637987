from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (REPO / "benchmarks").glob("*.py") if "make_parser(__doc__" in path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_every_benchmark_starts_and_says_what_it_takes(script: Path) -> None:
    # As a user starts it: its folder, where a file has the name of a package of ours, comes first on Python's path.
    run = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=False, cwd=REPO)
    assert run.returncode == 0, run.stderr
    assert "--quick" in run.stdout


def test_a_benchmark_that_takes_too_long_is_ended() -> None:
    from run_all import run_benchmark

    assert run_benchmark(["sleep", "60"], limit_s=0.1).startswith("ended after its limit")
    assert run_benchmark([sys.executable, "-c", "raise SystemExit(1)"], limit_s=60).startswith("falls short")
    assert run_benchmark([sys.executable, "-c", "raise SystemExit(5)"], limit_s=60).startswith("failed with status 5")


def test_every_benchmark_is_among_those_that_run_one_after_another() -> None:
    from run_all import BENCHMARKS

    assert {each.name for each in BENCHMARKS} | {"run_all"} == {script.stem for script in SCRIPTS}
