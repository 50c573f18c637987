"""A testbed of two real namespaces: nodes, regimes, two at once, broken parts."""

import os
import signal
import subprocess
import sys
from uuid import uuid4

import pytest

from harness.config.regime import Regime
from harness.errors import TestbedError
from harness.system.process import processes_of_run
from harness.testbed import open_testbed
from harness.testbed.netns import netns_obstacles
from harness.testbed.state import RunNames, state_root

NO_LINK = "; ".join(netns_obstacles())
LINK_MARKS = [pytest.mark.process, pytest.mark.root, pytest.mark.skipif(bool(NO_LINK), reason=f"no link: {NO_LINK}")]
pytestmark = LINK_MARKS
LOCAL = Regime(name="local")
NEAR = Regime(name="near", rtt_ms=1.0, rate_gbit=10.0)


@pytest.fixture
def run_id():
    return f"n{uuid4().hex[:8]}"


def _assert_nothing_left(run_id: str) -> None:
    names = RunNames(run_id, state_root())
    assert processes_of_run(run_id) == []
    assert not names.state_file.exists()
    assert not names.folder.exists()
    assert not any(path.exists() for path in names.namespace_paths)


def test_nodes_see_the_link_and_each_other_only_and_have_the_congestion_control_that_is_asked_for(run_id):
    with open_testbed("netns", run_id, [NEAR], congestion="reno") as testbed:
        for node in (testbed.storage, testbed.compute):
            listed = node.run(["cat", "/proc/net/dev"])
            assert node.interface in listed
            assert "eth0" not in listed
        link = testbed.describe()["link"]
        for side in ("storage_tcp", "compute_tcp"):
            assert link[side]["net.ipv4.tcp_congestion_control"] == "reno"
        testbed.set_regime(NEAR)
        assert testbed.probe(NEAR).rtt_ms_median >= 0.5
        assert testbed.probe(LOCAL) is None
    _assert_nothing_left(run_id)


def test_two_testbeds_live_side_by_side_and_end_apart(run_id):
    other = f"m{uuid4().hex[:8]}"
    with open_testbed("netns", run_id, [NEAR]) as first:
        with open_testbed("netns", other, [NEAR]) as second:
            first.set_regime(NEAR)
            second.set_regime(NEAR)
            assert second.compute.run(["cat", "/proc/net/dev"])
        _assert_nothing_left(other)
        assert first.probe(NEAR) is not None
    _assert_nothing_left(run_id)


def test_link_whose_relay_was_killed_is_made_again_for_the_next_regime(run_id):
    with open_testbed("netns", run_id, [NEAR], link_kind="relay") as testbed:
        testbed.set_regime(NEAR)
        os.kill(testbed.link.pid, signal.SIGKILL)
        testbed.set_regime(NEAR)
        assert testbed.probe(NEAR) is not None
        assert "made again" in str(testbed.describe()["notes"])
    _assert_nothing_left(run_id)


def test_failure_while_opening_leaves_nothing(run_id, monkeypatch):
    monkeypatch.setattr("harness.testbed.netns.RemoteMounts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_testbed("netns", run_id, [NEAR])
    _assert_nothing_left(run_id)


def test_a_congestion_control_that_the_kernel_has_not_is_refused_by_name(run_id):
    with pytest.raises(TestbedError, match=r"testbed\.congestion=nothing"):
        open_testbed("netns", run_id, [NEAR], congestion="nothing")
    _assert_nothing_left(run_id)


def test_doctor_answers_for_every_ability():
    done = subprocess.run(
        [sys.executable, "-m", "harness.testbed", "doctor"], capture_output=True, text=True, check=True
    )
    for ability in ("netem", "relay", "NFSv4", "sshfs", "namespaces", "caches"):
        assert ability in done.stdout
    assert all(line.startswith(("yes", "no ")) for line in done.stdout.splitlines())
