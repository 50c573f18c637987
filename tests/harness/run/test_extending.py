"""docs/extending.md: its dataset, loader and regime are used by its command as they stand there."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from PIL import Image

from tests.integration.runs import BUSY

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SAMPLES = 20


@pytest.fixture
def home(tmp_path):
    for name, text in re.findall(r"<!-- worked example: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.process
def test_the_dataset_and_the_loader_of_the_page_give_valid_rows(home):
    pictures = home / "pictures"
    pictures.mkdir()
    random = np.random.default_rng(0)
    names = [f"{number:02d}.jpg" for number in range(SAMPLES)]
    for name in names:
        Image.fromarray(random.integers(0, 256, (80, 100, 3), np.uint8)).save(pictures / name)
    lines = [f"{name},{number % 2}" for number, name in enumerate(names)]
    (pictures / "labels.csv").write_text("file,label\n" + "\n".join(lines) + "\n")
    (command,) = re.findall(r"^python -m harness (--config-dir=my_conf \+experiment=smoke .+)$", PAGE, re.MULTILINE)
    quick = ["~loaders.dali", "~loaders.streaming", "~loaders.pytorch", "repeats=1", "warmup_samples=0", "figures=[]"]
    quick += ["testbed.caches=tree", "accelerator=none", "results_dir=results", f"cache_dir={home / 'cache'}"]
    quick += [*BUSY, "workload.image_size=32"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *command.split(), *quick],
        cwd=home, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(home), str(ROOT)])},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with (home / "results" / "latest" / "epochs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["loader"], row["dataset"], row["samples"], row["valid"]) == (
        "threads", "csv_images", str(SAMPLES), "valid",
    )  # fmt: skip


def test_the_regime_of_the_page_joins_an_experiment(home):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"hydra.searchpath=[file://{home / 'my_conf'}]", "+experiment=wan30ms",
                                 "+regime@regimes.satellite=satellite"])  # fmt: skip
    assert cfg.regimes.satellite.rtt_ms == 600
