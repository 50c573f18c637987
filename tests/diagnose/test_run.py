"""Whole diagnoses of a few small images, as a user starts them."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from harness.diagnose.__main__ import main

pytestmark = pytest.mark.process

SMALL = ["workload.batch_size=4", "workload.image_size=32", "dataset.samples=24", "dataset.mean_kb=10"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def command(tmp_path, cache):
    where = [f"results_dir={tmp_path / 'results'}", f"cache_dir={cache}"]
    return [sys.executable, "-m", "harness.diagnose", "workload=resnet50", "accelerator=emulated", *SMALL, *where]


def test_a_diagnosis_measures_shows_and_stores(command, tmp_path):
    done = subprocess.run(
        [*command, "diagnose.workers=[1,2]", "diagnose.budget_s=3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("_diagnose_resnet50")
    assert {path.name for path in folder.iterdir()} == {"diagnosis.json", "diagnose.png", "diagnose.svg"}
    found = json.loads((folder / "diagnosis.json").read_text())
    assert [point["workers"] for point in found["points"]][:2] == [1, 2]
    names = [stage["name"] for stage in found["stages"]]
    assert names[:6] == ["read", "decode", "RandomResizedCrop", "RandomHorizontalFlip", "Normalize", "collate"]
    assert found["subject"]["runs_pipeline"]
    assert found["compute_s"] == pytest.approx(4 * 0.435 / 400, rel=0.5)
    for words in ("emulated: A100", "trains nothing", "t_load", "RandomResizedCrop", "Change"):
        assert words in done.stdout
    svg = " ".join(ET.parse(folder / "diagnose.svg").getroot().itertext())
    for words in ("emulated A100", "t_compute", "textbook's model", "measured"):
        assert words in svg


def test_what_is_asked_for_wrongly_is_refused_in_one_line(capsys):
    assert main(["workload=nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: workload=nonsense")


def test_help_names_what_there_is_to_choose(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "resnet50" in said
    assert "imagenet_small" in said
