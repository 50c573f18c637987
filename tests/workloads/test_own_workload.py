"""The worked example of docs/workloads.md does what the page says."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def test_the_page_s_class_and_yaml_are_trained_by_the_page_s_command(tmp_path):
    section = PAGE.read_text().partition("## Your own workload")[2]
    blocks = {kind: text for kind, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)}
    (tmp_path / "my_conf" / "workload").mkdir(parents=True)
    (tmp_path / "my_workload.py").write_text(blocks["python"])
    (tmp_path / "my_conf" / "workload" / "small_cnn.yaml").write_text(blocks["yaml"])
    command = shlex.split(blocks["sh"])
    assert command[:3] == ["python", "-m", "harness"]
    small = ["dataset.samples=16", "dataset.mean_kb=8", "repeats=1", "warmup_samples=0", "figures=[]"]
    small += ["~loaders.dali", "~loaders.streaming", "loaders.pytorch.num_workers=1"]
    paths = os.pathsep.join([str(tmp_path), str(PAGE.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command[1:], *small, "results_dir=results", f"cache_dir={tmp_path / 'cache'}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "results" / "latest" / "epochs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["workload"], row["loader"], row["samples"]) == ("small_cnn", "pytorch", "16")
    (cell,) = (tmp_path / "results" / "latest" / "cells").iterdir()
    assert json.loads((cell / "cell.json").read_text())["accelerator"]["label"] == "cpu"
