"""The files that CI, pre-commit and make read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[1]
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_runs_targets_and_scripts_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = {name for job in jobs for name in job.get("strategy", {}).get("matrix", {}).get("target", ())}
    for run in runs:
        program, *arguments = run.split()
        if program == "make":
            targets |= {name for name in arguments if re.fullmatch("[a-z-]+", name)}
        else:
            assert (REPO / program).stat().st_mode & 0o111
    assert runs
    assert targets <= TARGETS


def test_a_job_that_needs_a_gpu_asks_for_a_runner_that_has_one() -> None:
    jobs = {name: job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()}
    assert jobs["gpu-smoke"]["runs-on"] == ["self-hosted", "gpu"]


def test_every_hook_runs_in_the_projects_environment() -> None:
    hooks = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/python"}
    assert any("tests/prose.py" in hook["entry"] for hook in hooks)
