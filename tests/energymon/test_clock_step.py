"""A wall clock that is set while an agent runs and a program measures: windows are right, queries right or unknown."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from energymon import SqliteStore, query

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
S = 1_000_000_000

PROGRAM = """
import json, os, struct, sys, time
from pathlib import Path
import energymon

step_s, sysfs, store = float(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
options = ("--sysfs", sysfs, "--nvml", sysfs + "/none.so")
found = {}


def measure(name, seconds):
    with energymon.Window(name, agent=agent) as window:
        time.sleep(seconds)
    found[name] = {
        "joules": window.joules, "error_j": window.error_j, "start_ns": window.start_ns, "end_ns": window.end_ns,
        "duration_s": window.duration_s, "events": [event.kind for event in window.energy.events],
    }


with energymon.Agent(store, node="n", interval_ms=20, options=options) as agent:
    measure("before", 1.0)
    with energymon.Window("across", agent=agent) as across:
        time.sleep(0.5)
        fd = os.open(os.environ["SHIFT_CLOCK"], os.O_WRONLY)
        found["stepped_at_ns"] = time.time_ns()
        os.pwrite(fd, struct.pack("q", round(step_s * 1e9)), 0)
        time.sleep(0.5)
    found["across"] = {"joules": across.joules, "error_j": across.error_j, "duration_s": across.duration_s,
                       "events": [event.kind for event in across.energy.events]}
    measure("after", 2.0)
with energymon.Agent(store, node="n", interval_ms=20, options=options) as agent:
    measure("next agent", 0.5)
print(json.dumps(found))
"""


@pytest.fixture(params=[-30.0, 30.0, -0.8])
def measured(request, rapl, clock_shim, tmp_path):
    """Run the program; return the step, what it measured, its store, and the power that was drawn."""
    shift, store = tmp_path / "shift", tmp_path / "energy.sqlite"
    shift.write_bytes(struct.pack("q", 0))
    environment = {**os.environ, "LD_PRELOAD": str(clock_shim), "SHIFT_CLOCK": str(shift), "PYTHONPATH": str(REPO)}
    argv = [sys.executable, "-c", PROGRAM, str(request.param), str(rapl.root), str(store)]
    with rapl.running():
        said = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    watts = sum(zone.watts for zone in (*rapl.packages, *rapl.drams))
    return request.param, json.loads(said.stdout), store, watts


def test_windows_have_the_joules_of_the_time_that_passed_and_queries_those_or_none(measured):
    step_s, found, path, watts = measured
    # The tree shows what it drew some ms late.
    slack_j = watts * 0.02
    stepped_at_ns = found.pop("stepped_at_ns")
    for name, window in found.items():
        assert window["joules"] == pytest.approx(watts * window["duration_s"], abs=window["error_j"] + slack_j), name
    assert "clock-step" in found["across"]["events"]
    with SqliteStore.open(path) as store:
        for name in ("before", "after"):
            window = found[name]
            (told,) = query(store, window["start_ns"], window["end_ns"])
            (total,) = [c for c in told.components if c.name == "total"]
            if total.joules is None:
                assert "clock-ambiguous" in [event.kind for event in told.events]
            else:
                drawn_j = watts * window["duration_s"]
                assert total.joules == pytest.approx(drawn_j, abs=total.error_j + slack_j), name
            if abs(step_s) == 30.0:
                assert (total.joules is None) == (name == "before" and step_s < 0), name
        if step_s > 0:
            start_ns, inside_ns = found["before"]["start_ns"], found["after"]["start_ns"] - 10 * S
            (torn,) = query(store, start_ns, inside_ns)
            assert [event.kind for event in torn.events].count("clock-step") >= 1
            (total,) = [c for c in torn.components if c.name == "total"]
            assert total.joules == pytest.approx(watts * (stepped_at_ns - start_ns) / S, abs=total.error_j + slack_j)
