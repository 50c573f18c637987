"""Running the testbed in a user namespace where there is no root."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.testbed import unprivileged
from harness.testbed.unprivileged import SET_UP, UNSHARE, outer_identity, reexec_unprivileged, user_namespace_obstacles

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("obstacles", "inside"), [([], False), (["still no permission"], True)])
def test_process_that_may_make_namespaces_or_is_inside_goes_on_as_it_is(monkeypatch, obstacles, inside):
    if inside:
        monkeypatch.setenv(unprivileged.INSIDE_VARIABLE, "1")
    monkeypatch.setattr(unprivileged, "namespace_obstacles", lambda: obstacles)
    replaced = []
    monkeypatch.setattr(os, "execvpe", lambda *_: replaced.append(_))
    reexec_unprivileged(["true"])
    assert not replaced


def test_outer_identity_is_the_own_one_outside_any_user_namespace():
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("this test runs inside a user namespace")
    assert outer_identity() == (os.geteuid(), os.getegid())


@pytest.mark.skipif(bool(user_namespace_obstacles()), reason="; ".join(user_namespace_obstacles()))
def test_namespace_has_its_own_run_directory_and_takes_named_network_namespaces():
    inside = "test -z \"$(ls /run)\" && ip netns add jf-x && ip netns list && sed 's/ \\+/ /g' /proc/self/uid_map"
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", SET_UP, "sh", "sh", "-c", inside], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == ["jf-x", "0"]
    assert "jf-x" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming an ordinary user needs root")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_ordinary_user_becomes_root_of_the_namespace_alone():
    ordinary = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    done = subprocess.run(
        [*ordinary, *UNSHARE, "sh", "-c", SET_UP, "sh", "id", "-u"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"ordinary users get no user namespace here: {done.stderr.strip()}")
    assert done.stdout.strip() == "0"
