"""The trees that other tests and the benchmark measure by."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from energymon.sensors.powercap import domains

TREES = Path(__file__).with_name("trees.py")


@pytest.mark.process
def test_as_a_program_a_tree_counts_until_its_stdin_ends(tmp_path):
    root = tmp_path / "sys"
    argv = [sys.executable, TREES, "--root", root, "--tree", "intel-two-sockets", "--step-ms", "5"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline()) == {"sysfs": str(root), "tree": "intel-two-sockets"}
        energy = domains(root)["package-1", "cpu"] / "energy_uj"
        first = int(energy.read_text())
        deadline = time.monotonic() + 10
        while (now := int(energy.read_text())) == first and time.monotonic() < deadline:
            time.sleep(0.005)
        process.stdin.close()
        assert process.wait(10) == 0
    assert now > first


def test_what_a_tree_shows_grows_and_wraps_as_its_watts_say(rapl):
    package = rapl.packages[0]
    with rapl.running():
        time.sleep(0.4)
    shown = list(package.shown_uj)
    assert shown == sorted(shown)
    assert shown[-1] > package.range_uj > shown[0]
    assert int((package.path / "energy_uj").read_text()) == shown[-1] % package.range_uj


@pytest.mark.parametrize("name", ["psys", "core"])
def test_what_must_not_be_added_is_there_to_be_left_out(rapl, name):
    names = [(zone.path / "name").read_text().strip() for zone in rapl.others]
    assert name in names
    assert (rapl.root / "class" / "powercap" / "intel-rapl-mmio:0" / "energy_uj").exists()
