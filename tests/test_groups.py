"""The two groups of tests: those that `--fast` runs, and those that run alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
CONFTEST = Path(__file__).with_name("conftest.py")

pytestmark = pytest.mark.process


def run(folder: Path, tests: str, *options: str) -> str:
    """Run a file of tests under this suite's conftest; return the report."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(f"import os, pathlib, socket, subprocess, time\nimport pytest\n{tests}")
    options = (
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-c",
        str(REPO / "pyproject.toml"),
        f"--rootdir={folder}",
        *options,
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=200,
    )
    return done.stdout + done.stderr


def test_a_test_without_the_marker_that_starts_something_fails_in_the_fast_set(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("deed", [
    lambda: subprocess.run(["unshare", "-n", "true"]),
    lambda: os.fork() or os._exit(0),
    lambda: socket.socket().connect(("192.0.2.1", 80)),
])
@pytest.mark.parametrize("caught", [False, True])
def test_slips_in(deed, caught):
    try:
        deed()
    except Exception:
        if not caught:
            raise

def test_is_pure():
    pass
"""
    report = run(tmp_path, tests, "--fast")
    assert "6 failed, 1 passed" in report
    for deed in ("process (subprocess.Popen unshare)", "process (os.fork)", "connected to ('192.0.2.1', 80)"):
        assert report.count(deed) >= 2
    assert "marker `process`" in report


def test_the_markers_leave_tests_out_of_the_fast_set(tmp_path: Path) -> None:
    tests = """
@pytest.fixture
def child():
    return subprocess.run(["true"])

@pytest.mark.process
def test_starts(child): pass

@pytest.mark.serial
def test_alone(): pass

def test_pure(): pass

def test_forgets(child): pass
"""
    assert "1 passed, 2 deselected, 1 error" in run(tmp_path, tests, "--fast")
    assert "4 passed" in run(tmp_path, tests)
    never = "pytestmark = [\n    pytest.mark.process,\n]\nraise RuntimeError"
    assert "no tests ran" in run(tmp_path, never, "--fast")
    assert "no tests ran" in run(tmp_path, "raise RuntimeError", "-m", "slow")


def test_a_serial_test_runs_while_no_other_does(tmp_path: Path) -> None:
    tests = f"""
LOG = pathlib.Path({str(tmp_path / "log")!r})

def note(what):
    with LOG.open("a") as file:
        file.write(f"{{what}} ")

@pytest.mark.parametrize("number", range(8))
def test_beside(number):
    note("in")
    time.sleep(0.05)
    note("out")

@pytest.mark.serial
@pytest.mark.parametrize("number", range(8))
def test_alone(number):
    note("ALONE")
    time.sleep(0.05)
    note("DONE")
"""
    assert "16 passed" in run(tmp_path, tests, "-n2", "--dist=worksteal")
    running, words = 0, (tmp_path / "log").read_text().split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        running += {"in": 1, "out": -1}.get(word, 0)
        assert word != "ALONE" or (running == 0 and after == "DONE")


def test_a_serial_test_that_fails_and_ends_the_run_keeps_no_other_worker_waiting(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("number", range(8))
def test_beside(number): pass

@pytest.mark.serial
@pytest.mark.parametrize("number", range(8))
def test_alone(number): assert False
"""
    assert "stopping after 1 failures" in run(tmp_path, tests, "-n2", "--dist=worksteal", "-x")
