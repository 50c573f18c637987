"""Whole advice, as a user asks for it: of a workload, and of a training script of one's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.advise.__main__ import main
from tests.integration.runs import BUSY

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
IDLE = pytest.mark.serial  # probes beside other tests are refused

SMALL = ["workload.batch_size=4", "workload.image_size=32", "dataset.samples=48", "dataset.mean_kb=10"]
SCRIPT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Slow(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        if get_worker_info():
            open(f"/dev/shm/torch_{os.getpid()}_0_0", "w").close()  # as of a batch that is being made
        time.sleep(float(sys.argv[1]))
        return torch.zeros(4)

if __name__ == "__main__":
    DataLoader(Slow(), batch_size=2)  # of a validation that never comes
    train = DataLoader(Slow(), batch_size=8, shuffle=True)
    for epoch in range(9):
        for batch in train:
            time.sleep(0.01)
    print("the end", file=open("end", "w"))
"""


def advise(tmp_path, *words):
    return subprocess.run(
        [sys.executable, "-m", "harness.advise", f"results_dir={tmp_path / 'results'}", *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def read(tmp_path):
    (folder,) = (tmp_path / "results").iterdir()
    assert (folder / "advice.png").exists()
    return json.loads((folder / "advice.json").read_text())


@IDLE
def test_a_workload_gets_its_loaders_ranked(tmp_path):
    where = f"cache_dir={tmp_path / 'cache'}"
    few = ["loaders=[pytorch,spdl]", "loader=pytorch", "loader.num_workers=1", "budget_s=12"]
    few += ["accelerator=emulated", *BUSY]
    done = advise(tmp_path, "workload=resnet50", *SMALL, *few, where)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    found = read(tmp_path)
    assert found["outcome"] == {0: "change", 3: "leave it"}[done.returncode]
    assert {one["loader"] for one in found["configurations"]} == {"pytorch", "spdl"}
    assert "head-room" in done.stdout
    assert all(one["epoch_s"]["low"] < one["epoch_s"]["value"] for one in found["configurations"])
    assert {"read", "decode", "augment", "collate"} == {one["kind"] for one in found["stages"]}
    assert "preparing a batch takes" in done.stdout


@IDLE
def test_probes_that_another_program_spoils_are_refused(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        done = advise(tmp_path, "budget_s=12", "--script", str(tmp_path / "train.py"), "--", "0.01")
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert done.returncode == 4, done.stdout
    assert "cannot say" in done.stdout
    assert "other programs used" in done.stdout


@IDLE
@pytest.mark.parametrize(("sleep_s", "outcome"), [(0.01, "change"), (0.0, "leave it")])
def test_a_script_gets_the_workers_that_it_lacks_and_is_left_alone_where_it_lacks_none(tmp_path, sleep_s, outcome):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = advise(tmp_path, "budget_s=25", "--script", str(tmp_path / "train.py"), "--", str(sleep_s))
    found = read(tmp_path)
    assert found["outcome"] == outcome, done.stdout + done.stderr
    assert done.returncode == {"change": 0, "leave it": 3}[outcome]
    if outcome == "change":
        assert found["configurations"][0]["arguments"]["num_workers"] >= 4
        assert "num_workers=" in done.stdout
    assert not (tmp_path / "end").exists()
    assert not [*Path("/dev/shm").glob("torch_*_0_0")]


@IDLE
@pytest.mark.slow
@pytest.mark.parametrize(("script", "outcome"), [("tokens", "leave it"), ("folder", "change"), ("speech", "change")])
def test_scripts_as_people_have_them(tmp_path, script, outcome):
    path = Path(__file__).parent / "scripts" / f"{script}.py"
    done = advise(tmp_path, "budget_s=40", "--script", str(path), "--", str(tmp_path))
    found = read(tmp_path)
    assert found["outcome"] == outcome, done.stdout + done.stderr
    limits = {one["arguments"]["num_workers"]: one["limit"] for one in found["configurations"]}
    assert script != "tokens" or limits[0] == "step"
    assert script != "folder" or "processors" in limits.values()
    slowest = max(found["stages"], key=lambda one: one["batch_s"])["kind"]
    assert script != "folder" or slowest == "augment"  # it computes
    assert outcome == "leave it" or found["configurations"][0]["arguments"]["num_workers"] > 0


@IDLE
@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["workload.image_size=32", "dataset.mean_kb=4", "regime=lan_10ms"], "readers"),
        (["workload.image_size=448", "dataset.mean_kb=10"], "processors"),
    ],
)
def test_tiny_files_wait_and_heavy_augmentation_computes(tmp_path, words, limit):
    where = [f"cache_dir={tmp_path / 'cache'}", "dataset.samples=128", "workload.batch_size=8", *BUSY]
    step = ["accelerator=emulated", "accelerator.seconds_per_sample=0.0005"]
    few = ["workload=resnet50", "loaders=[pytorch]", "loader.num_workers=2", "budget_s=30"]
    done = advise(tmp_path, *few, *words, *step, *where)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    found = read(tmp_path)
    own = next(one for one in found["configurations"] if one["arguments"] == {"num_workers": 2})
    assert own["limit"] == limit, done.stdout + done.stderr
    slowest = max(found["stages"], key=lambda one: one["batch_s"])["kind"]
    if limit == "readers":
        assert found["outcome"] == "change"
        assert found["configurations"][0]["arguments"]["num_workers"] > 4
    else:
        assert slowest == "augment"
        assert "takes most of the processors" in done.stdout


def test_a_script_that_fails_or_trains_from_nothing_is_named(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("raise RuntimeError('of its own')")
    (tmp_path / "none.py").write_text("pass")
    assert main(["--script", str(tmp_path / "bad.py"), f"results_dir={tmp_path}"]) == 2
    assert "of its own" in capsys.readouterr().err
    assert main(["--script", str(tmp_path / "none.py"), f"results_dir={tmp_path}"]) == 2
    assert "ended before enough batches" in capsys.readouterr().err
    assert main(["--script", str(tmp_path / "missing.py")]) == 2
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["objective=fun"], "objective='fun': expected one of time, joules, edp"),
        (["budget_s=1"], "budget_s=1: expected seconds of probing, 10 to 3600"),
        (["loaders=[nonsense]"], "loaders.nonsense: no such loader"),
        (["workload=nonsense"], "workload"),
        (["loader.num_wokers=2"], "num_wokers"),
        (["--resume"], "no such flag"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused_in_one_line(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_help_names_what_there_is_to_choose(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for words in ("resnet50", "wan_30ms", "--script", "leave it"):
        assert words in said
