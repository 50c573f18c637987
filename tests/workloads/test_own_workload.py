"""The worked example of docs/workloads.md does what the page says, on pictures of which one is none."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.runs import BUSY

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"
SAMPLES = 17
BROKEN = 5


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Small pictures of two classes; one file begins and ends as a JPEG does, and holds none."""
    root = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for number in range(SAMPLES):
        path = root / f"class {number > 8}" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (80, 100, 3), np.uint8)).save(path)
    (root / "class False" / f"{BROKEN:02d}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + chance.bytes(3000) + b"\xff\xd9")
    return root


@pytest.fixture(scope="module")
def folder(tree, tmp_path_factory):
    """The results of the page's command, with its class and its YAML."""
    home = tmp_path_factory.mktemp("home")
    section = PAGE.read_text().partition("## Your own workload")[2]
    blocks = {kind: text for kind, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)}
    (home / "my_conf" / "workload").mkdir(parents=True)
    (home / "my_workload.py").write_text(blocks["python"])
    (home / "my_conf" / "workload" / "small_cnn.yaml").write_text(blocks["yaml"])
    command = shlex.split(blocks["sh"])
    assert command[:3] == ["python", "-m", "harness"]
    small = [f"dataset.root={tree}", "repeats=1", "warmup_samples=0", "figures=[]", "+loaders.pytorch.on_error=skip"]
    small += ["testbed.caches=tree", "~loaders.dali", "~loaders.streaming", "loaders.pytorch.num_workers=1", *BUSY]
    paths = os.pathsep.join([str(home), str(PAGE.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command[1:], *small, "results_dir=results", f"cache_dir={home / 'cache'}"],
        cwd=home, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"1 sample skipped by policy: {BROKEN}" in done.stderr
    return home / "results" / "latest"


def only_row(folder):
    with (folder / "epochs.csv").open() as file:
        (row,) = csv.DictReader(file)
    return row


def only_cell(folder):
    (cell,) = (folder / "cells").iterdir()
    return json.loads((cell / "cell.json").read_text())


def test_the_page_s_class_and_yaml_are_trained_by_the_page_s_command(folder):
    row = only_row(folder)
    assert (row["workload"], row["loader"]) == ("small_cnn", "pytorch")
    assert only_cell(folder)["accelerator"]["label"] == "cpu"


def test_a_sample_that_the_policy_leaves_out_is_counted_named_and_told_and_the_row_is_valid(folder):
    row, cell = only_row(folder), only_cell(folder)
    assert (row["valid"], row["samples"]) == ("valid", str(SAMPLES - 1))
    (skipped,) = cell["skipped"]
    assert (cell["on_error"], skipped["count"], list(skipped["samples"])) == ("skip", 1, [str(BROKEN)])
    checks = json.loads((folder / "checks.json").read_text())
    (once,) = [check for check in checks if check["rule"] == "exactly_once"]
    assert once["actual"].startswith(f"1 skipped by policy ({BROKEN}), 0 ")
    with (folder / "metrics.csv").open() as file:
        assert [metrics["skipped_samples"] for metrics in csv.DictReader(file)] == ["1"]
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert [entry["message"] for entry in ledger if entry["event"] == "done"] == [
        f"1 sample skipped by policy: {BROKEN}"
    ]
    page = (folder / "report.html").read_text()
    assert f"1 sample skipped by policy (on_error=skip): {BROKEN}. The first: " in page
    assert f"{BROKEN:02d}.jpg" in page
