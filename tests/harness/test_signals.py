"""A whole program: a signal ends it with one line, and its output may end before it does."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys, time
from harness.system.signals import run_program

def program():
    print("importing", flush=True)
    time.sleep({sleeps})
    return 7

class Late:
    def __del__(self):
        print("ending", flush=True)
        time.sleep(0.3)

late = Late()
run_program(program, "nothing was done")
"""


def started(sleeps):
    command = [sys.executable, "-c", PROGRAM.format(sleeps=sleeps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "importing\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_imports_is_one_line_and_the_usual_status(number):
    process = started(30)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said.split(";")[0]) == (128 + number, f"interrupted by signal {number}")


def test_a_signal_while_the_interpreter_ends_changes_nothing():
    process = started(0)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (7, "")


@pytest.mark.parametrize("package", ["harness", "harness.diagnose"])
def test_a_command_s_package_imports_nothing_slow_before_signals_are_heard(package):
    slow = {"hydra", "numpy", "pandas", "matplotlib", "torch", "rich"}
    code = f"import sys, {package}; print(sorted({slow} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_a_program_goes_on_when_the_reader_of_its_output_has_gone(tmp_path):
    program = f"""
from pathlib import Path
from harness.system.signals import run_program

def program():
    for number in range(20_000):
        print("a line that nobody reads", number, flush=True)
    Path({str(tmp_path / "work")!r}).touch()
    return 7

run_program(program, "nothing was done")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(20) == 7
    assert (tmp_path / "work").exists()


def harness(*arguments, **options):
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False, **options)


def test_output_that_a_full_disk_loses_is_an_error():
    with Path("/dev/full").open("w") as full:
        done = harness("--help", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (5, 1)
    assert done.stderr.startswith("error: stdout ")


def test_output_without_utf_8_is_written_in_ascii():
    code = "from harness.system.signals import run_program; run_program(lambda: print('2.0× ≤ 3 µ'), '')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "2.0x <= 3 ?\n"


@pytest.mark.parametrize("command", ["harness", "harness.report", "harness.testbed", "energymon", "loaders.streaming"])
def test_the_version_of_every_command_is_the_projects(command):
    done = subprocess.run([sys.executable, "-m", command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"joulefeed {version('joulefeed')}\n"
