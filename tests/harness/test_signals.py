"""A signal ends a program with one line, from its first import to the end of the interpreter."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from harness.signals import run_program

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
    assert (process.returncode, said) == (128 + number, f"interrupted by signal {number}; nothing was done\n")


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
