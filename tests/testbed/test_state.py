"""A run's record: locked while its owner lives, taken over when it is dead."""

import os
import subprocess
import sys

import pytest

from harness.errors import TestbedError
from harness.testbed import state as state_module
from harness.testbed.state import RunState, abandoned_runs, living_runs, state_root

OWNER = """
import sys
from pathlib import Path
from harness.testbed import state
state.state_root = lambda: Path(sys.argv[1])
held = state.RunState.create("owner1")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(state_module, "state_root", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def owner(root):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_waiting_for_a_cleaned_run_ends_without_its_state(root):
    held = RunState.create("gone")
    names = held.names
    held.forget()
    assert RunState.take_over(names, wait=True) is None


@pytest.mark.process
def test_run_id_in_use_is_refused_and_named(owner):
    with pytest.raises(TestbedError, match="owner1 is in use"):
        RunState.create("owner1")


@pytest.mark.parametrize("run_id", ["", "../x", "a b", "x" * 33, "a/b"])
def test_run_id_that_is_no_plain_name_is_refused(root, run_id):
    with pytest.raises(TestbedError, match="letters and digits"):
        RunState.create(run_id)
    assert list(root.iterdir()) == []


def test_record_without_content_is_cleaned_too(root):
    (root / "torn.run").touch()
    (found,) = abandoned_runs()
    assert found.names.run_id == "torn"
    found.release()


def test_file_with_a_foreign_name_is_not_taken_for_a_record(root):
    (root / "not-a-run-id.run").touch()
    assert list(abandoned_runs()) == []


def test_folder_of_a_run_is_private(root):
    held = RunState.create("private")
    assert held.names.folder.stat().st_mode & 0o777 == 0o700
    held.forget()


@pytest.mark.skipif(os.geteuid() == 0, reason="root keeps its states in /run/joulefeed")
def test_state_root_open_to_others_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "joulefeed").mkdir()
    (tmp_path / "joulefeed").chmod(0o777)
    with pytest.raises(TestbedError, match="belongs to this user alone"):
        state_root()


@pytest.mark.process
def test_a_run_is_living_while_its_owner_lives_then_abandoned_until_it_is_forgotten(root, owner):
    assert (living_runs(), list(abandoned_runs())) == ({"owner1"}, [])
    mine = RunState.create("mine1")
    assert living_runs() == {"owner1", "mine1"}
    mine.forget()
    owner.kill()
    owner.wait()
    assert living_runs() == set()
    (found,) = abandoned_runs()
    assert found.names.run_id == "owner1"
    found.forget()
    assert not found.names.state_file.exists()
    assert list(abandoned_runs()) == []
