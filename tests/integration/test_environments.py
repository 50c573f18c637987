"""Loaders that have an environment of their own pass there what every loader passes, and their own tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from harness.run.prepare import python_of

REPO = Path(__file__).parents[2]
LIMIT_S = 1500


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 300)
@pytest.mark.parametrize("folder", ["acceptance", "own"])
@pytest.mark.parametrize(("environment", "loader"), [("tensorflow", "tfdata")])
def test_a_loader_passes_its_tests_in_its_environment(environment: str, loader: str, folder: str) -> None:
    tests = f"tests/loaders/{loader if folder == 'own' else folder}"
    argv = [python_of(environment), "-m", "pytest", "-q", "-m", "not vm", "-p", "no:cacheprovider", "-k", loader, tests]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_XDIST"))}
    done = subprocess.run(argv, cwd=REPO, env=variables, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 20
    assert os.geteuid() or "skipped" not in done.stdout
