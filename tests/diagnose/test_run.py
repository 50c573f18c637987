"""Whole diagnoses of a few small images, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest

from harness.diagnose.cli import main
from harness.diagnose.diagnosis import read_diagnosis
from harness.diagnose.verdict import judge
from harness.errors import ResultsError

pytestmark = pytest.mark.process

SMALL = ["workload.batch_size=4", "workload.image_size=32", "dataset.samples=24", "dataset.mean_kb=10"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def command(tmp_path, cache):
    where = [f"results_dir={tmp_path / 'results'}", f"cache_dir={cache}"]
    return [sys.executable, "-m", "harness.diagnose", "workload=resnet50", "accelerator=emulated", *SMALL, *where]


def test_a_diagnosis_measures_shows_and_stores(command, tmp_path, capsys):
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
    found = read_diagnosis(folder)
    assert [point.workers for point in found.points][:2] == [1, 2]
    names = [stage.name for stage in found.stages]
    assert names[:6] == ["read", "decode", "RandomResizedCrop", "RandomHorizontalFlip", "Normalize", "collate"]
    assert found.subject.runs_pipeline
    assert found.compute_s == pytest.approx(4 * 0.435 / 400, rel=0.5)
    for words in ("emulated: A100", "trains nothing", "t_load", "RandomResizedCrop", judge(found).headline.split()[0]):
        assert words in done.stdout
    svg = " ".join(ET.parse(folder / "diagnose.svg").getroot().itertext())
    for words in ("emulated A100", "t_compute", "textbook's model", "measured"):
        assert words in svg
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.split() == done.stdout.split()


def test_ctrl_c_leaves_nothing(command, tmp_path, shared_memory_left):
    shm = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen([*command, "diagnose.budget_s=60"], stderr=subprocess.PIPE, text=True)
    try:
        while "training with 1 worker" not in (line := process.stderr.readline()):
            assert line, "it ended before it was interrupted"
        deadline = time.monotonic() + 30
        while not psutil.Process(process.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert workers
    assert process.returncode == 128 + signal.SIGINT
    assert said.endswith("interrupted by signal 2\n")
    assert not (tmp_path / "results").exists()
    assert not psutil.wait_procs(workers, timeout=5)[1]
    assert not shared_memory_left(shm)


def test_what_is_asked_for_wrongly_is_refused_in_one_line(capsys):
    assert main(["workload=nonsense"]) == 2
    assert capsys.readouterr().err.startswith("error: workload=nonsense")


def test_help_names_what_there_is_to_choose(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "resnet50" in said
    assert "imagenet_small" in said


@pytest.mark.parametrize("content", [None, "{", '{"format": 0}', '{"format": 1}', "[]"])
def test_a_folder_that_holds_no_diagnosis_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "diagnosis.json").write_text(content)
    with pytest.raises(ResultsError, match=r"diagnosis\.json"):
        read_diagnosis(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("load_s",), "soon"),
        (("load_s",), float("nan")),
        (("compute_s",), 0),
        (("points",), []),
        (("points", 0, "workers"), None),
        (("stages",), {}),
        (("stages", 0, "batch_s"), "soon"),
        (("subject",), 7),
        (("subject", "notes"), 7),
        (("subject", "emulated"), "yes"),
        (("command",), None),
    ],
)
def test_a_damaged_diagnosis_is_refused_in_one_line(tmp_path, diagnosis, capsys, place, value):
    diagnosis().write(tmp_path)
    stored = inner = json.loads((tmp_path / "diagnosis.json").read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "diagnosis.json").write_text(json.dumps(stored))
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'diagnosis.json'}: ")
    assert said.endswith("; diagnose again\n")
    assert said.count("\n") == 1


def test_what_is_stored_is_what_was_measured(tmp_path, diagnosis):
    made = diagnosis(skipped=(8,))
    made.write(tmp_path)
    assert read_diagnosis(tmp_path) == made
    assert json.loads((tmp_path / "diagnosis.json").read_text())["subject"]["emulated"] is True
