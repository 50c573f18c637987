"""`energymon exec` as a process, with real commands: joules of fakes that count, exit status, signals."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

REPO = Path(__file__).parents[2]
COUNTS = """n=0; trap 'n=$((n+1))' HUP INT TERM USR1; echo ready
while [ $n -eq 0 ]; do sleep 0.05; done; sleep 0.2; exit $((40+n))"""
"""A command that counts signals, and ends a moment after the first."""


def argv_of(bare, *options):
    return [sys.executable, "-m", "energymon", "exec", *bare, *options]


@pytest.fixture
def bare(tmp_path):
    """Options for a host without sensors."""
    return ["--sysfs", str(tmp_path / "sys"), "--nvml", str(tmp_path / "none.so")]


@pytest.fixture
def run_exec(bare):
    def run(*options, host=None, **more):
        argv = argv_of(bare if host is None else host, *options)
        return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=60, check=False, **more)

    return run


def test_a_command_on_a_host_without_a_sensor_runs_with_its_output_input_and_status(run_exec):
    done = run_exec("--", "sh", "-c", "cat; echo said >&2; exit 3", input="given")
    assert (done.returncode, done.stdout) == (3, "given")
    said, seconds, why = done.stderr.splitlines()
    assert said == "said"
    assert re.fullmatch(r"energymon: sh -c .*: \d\.\d{6} s, status 3", seconds)
    assert why.startswith("energymon: nothing on this host measures energy; ")
    assert "--estimate missing" in why


def test_figures_are_of_the_boards_that_the_command_can_see_and_go_to_a_file(run_exec, boards, nvml_library, tmp_path):
    boards(2, watts={0: 100.0, 1: 500.0}, period_ms={0: 5.0, 1: 5.0})
    host = ["--sysfs", str(tmp_path / "sys"), "--nvml", str(nvml_library)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    out = tmp_path / "out.json"
    done = run_exec("--json", str(out), "--", "sleep", "0.3", host=host, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answer = json.loads(out.read_text())
    total = answer["energy"]["components"][-1]
    span_s = (answer["energy"]["end_ns"] - answer["energy"]["start_ns"]) / 1e9
    assert abs(total["joules"] - 100 * span_s) <= total["error_j"] + 0.5
    assert (answer["command"], answer["status"]) == (["sleep", "0.3"], 0)
    assert 0.3 <= answer["seconds"] <= span_s
    told = run_exec("--boards", "1", "--", "true", host=host, env=env).stderr
    assert "nvml-counter" in told
    assert "accuracy of gpu-1 gpu: no error of this board is published" in told
    assert "counted: gpu-1 (GPU-00000001); not counted: gpu-0" in told
    refused = run_exec("--boards", "7", "--", "touch", str(tmp_path / "ran"), host=host)
    assert refused.returncode == 2
    assert "'7' names none of gpu-0" in refused.stderr
    assert not (tmp_path / "ran").exists()


def test_the_exit_status_is_what_a_shell_gives_and_an_estimate_is_labelled(run_exec):
    for command, status in (("no-such-command", 127), (str(REPO), 126)):
        done = run_exec("--", command)
        assert done.returncode == status
        assert done.stderr.startswith(f"energymon: {command}: ")
    done = run_exec("--estimate", "missing", "--attribute", "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "estimate" in done.stderr
    assert "attributed by CPU time, not measured: " in done.stderr


def test_figures_outlive_the_control_group_of_a_command(run_exec, tmp_path):
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\n")
    command = f"rm {tmp_path}/cpu.stat; exit 7"
    done = run_exec("--estimate", "missing", f"--attribute={tmp_path}", "--", "sh", "-c", command)
    assert done.returncode == 7
    assert " total " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("energymon: the share by CPU time is unknown: /")


def test_a_caller_without_stderr_that_waits_for_no_child_has_the_status_and_no_figures(run_exec):
    def as_caller():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.close(2)

    done = run_exec("--estimate", "missing", "--", "sh", "-c", "cat; exit 5", input="given", preexec_fn=as_caller)
    assert (done.returncode, done.stdout, done.stderr) == (5, "given", "")


def test_a_signal_is_passed_on_once_and_figures_still_come(bare):
    argv = argv_of(bare, "--", "sh", "-c", COUNTS)
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 41, said
    assert "status 41" in said


def test_a_command_ignores_what_its_caller_ignored(bare):
    shell = f"trap '' HUP INT; {shlex.join(argv_of(bare, '--', 'sh', '-c', 'kill -HUP $$; kill -INT $$; exit 5'))}"
    done = subprocess.run(["sh", "-c", shell], cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 5, done.stderr


@pytest.mark.parametrize("hangs_up", [False, True])
def test_ctrl_c_and_the_hangup_of_a_terminal_reach_the_command_once(bare, hangs_up):
    pid, terminal = os.forkpty()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it
        os.chdir(REPO)
        os.execv(sys.executable, argv_of(bare, "--", "sh", "-c", COUNTS))
    said = b""
    try:
        while b"ready" not in said:
            said += os.read(terminal, 4096)
        time.sleep(0.1)
        os.write(terminal, b"\x03" if not hangs_up else b"")
        while not hangs_up:
            said += os.read(terminal, 4096)
    except OSError:
        # The terminal's other side is closed.
        pass
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 41, said
