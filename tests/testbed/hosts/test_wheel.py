"""The package without its checkout: the playbooks and their lock come with it, and it makes a wheel of itself."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[3]


def make_wheel(script, cache):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(done.stdout.strip())


def test_an_installed_package_finds_its_playbooks_and_makes_the_wheel_that_hosts_install(tmp_path):
    wheel = make_wheel(REPO / "playbooks" / "wheel.sh", tmp_path / "cache")
    wheel.extractall(tmp_path / "packages")
    code = "from harness.testbed.hosts.inventory import PLAYBOOKS, ansible_program\n"
    code += "print(PLAYBOOKS); ansible_program('none')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    playbooks = Path(found.stdout.strip())
    assert playbooks == tmp_path / "packages" / "harness" / "playbooks", found.stderr
    assert f"`sh {playbooks}/ansible.sh` makes an environment with it" in found.stderr
    assert (playbooks.parent / "requirements.lock").read_bytes() == (REPO / "requirements.lock").read_bytes()
    again = make_wheel(playbooks / "wheel.sh", tmp_path / "cache")
    assert sorted(again.namelist()) == sorted(wheel.namelist())
    assert {path.name for path in playbooks.glob("*.yml")} == {path.name for path in (REPO / "playbooks").glob("*.yml")}
