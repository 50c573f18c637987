"""The testbed without a link."""

import os
import signal
import subprocess
import sys
from uuid import uuid4

import psutil
import pytest

from harness.config.regime import Regime
from harness.errors import MountError, TestbedError
from harness.system.process import processes_of_run
from harness.testbed import clean, open_testbed
from harness.testbed.state import RunNames, state_root

pytestmark = pytest.mark.process

LOCAL = Regime(name="local")
WAN = Regime(name="wan", rtt_ms=30.0, rate_gbit=10.0)


@pytest.fixture
def run_id():
    return f"l{uuid4().hex[:8]}"


def test_auto_is_local_when_no_regime_needs_a_link(run_id):
    with open_testbed("auto", run_id, [LOCAL]) as testbed:
        assert testbed.kind == "local"
        assert testbed.link is None
        assert testbed.probe(LOCAL) is None
        assert testbed.compute.address == "127.0.0.1"


def test_regime_with_a_link_is_refused_by_name(run_id):
    with pytest.raises(TestbedError, match=r"regimes\.wan"):
        open_testbed("local", run_id, [LOCAL, WAN])
    assert not RunNames(run_id, state_root()).state_file.exists()


def test_mount_is_the_directory_itself_and_a_missing_one_is_named(run_id, tmp_path):
    with open_testbed("local", run_id, [LOCAL]) as testbed:
        with testbed.mount(tmp_path, LOCAL) as mount:
            assert (mount.path, mount.kind) == (tmp_path, "local")
        with pytest.raises(MountError, match="missing"):
            testbed.mount(tmp_path / "missing", LOCAL).__enter__()


def test_the_same_run_id_cannot_be_opened_twice_and_closing_ends_processes_and_removes_the_record(run_id):
    testbed = open_testbed("local", run_id, [LOCAL])
    with pytest.raises(TestbedError, match="in use"):
        open_testbed("local", run_id, [LOCAL])
    with testbed.compute.start(["sh", "-c", "setsid sh -c 'echo up; exec sleep 94' &"], stdout=-1) as child:
        assert child.read_line(10) == b"up"
    testbed.close()
    testbed.close()
    assert not processes_of_run(run_id)
    names = RunNames(run_id, state_root())
    assert not names.state_file.exists()
    assert not names.folder.exists()


def test_closing_ends_a_reaper_that_was_stopped(run_id):
    testbed = open_testbed("local", run_id, [LOCAL])
    reaper = testbed._lifetime._reaper.pid
    os.kill(reaper, signal.SIGSTOP)
    testbed.close()
    assert not psutil.pid_exists(reaper)


HARNESS = """
import sys
from harness.config.regime import Regime
from harness.testbed import open_testbed
testbed = open_testbed("local", sys.argv[1], [Regime(name="local")])
print(testbed._lifetime._reaper.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.serial
def test_clean_ends_the_stopped_reaper_of_a_killed_harness(run_id):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HARNESS, run_id], text=True, **pipes) as process:
        reaper = psutil.Process(int(process.stdout.readline()))
        reaper.suspend()
        process.kill()
    # The kernel continues a stopped process whose group has lost its parent, as a rule before this; then it cleans up.
    clean()
    reaper.wait(10)
    assert not RunNames(run_id, state_root()).state_file.exists()
