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
import atexit, shutil, sys, tempfile, time
from joulefeed.signals import Interrupted, signals_held, signals_raise
from harness.system.program import run_program

def rest():
    for _ in range(300):
        time.sleep(0.1)  # a signal that comes just before a sleep does not end it

class Late:
    def __del__(self):
        print("in a destructor", flush=True)
        rest()

def callback():
    Late()
    rest()

def own_error():
    try:
        print("in a library", flush=True)
        rest()
    except BaseException as error:
        raise ImportError("initialization failed")

def swallowing():
    try:
        print("in a library", flush=True)
        rest()
    except Exception:
        pass
    rest()

def held():
    with signals_held():
        print("held", flush=True)
        sys.stdin.readline()
        print("let go", flush=True)
    rest()

def importing():
    folder = tempfile.mkdtemp()
    with open(folder + "/slow_to_import.py", "w") as module:
        module.write("import sys; print('importing', flush=True); sys.stdin.readline(); print('imported', flush=True)")
    sys.path.insert(0, folder)
    try:
        import slow_to_import
        rest()
    finally:
        shutil.rmtree(folder)

def ending():
    atexit.register(lambda: (print("ending", flush=True), rest()))
    return 7

run_program({program})
"""


def started(program):
    command = [sys.executable, "-c", PROGRAM.format(program=program)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", ["swallowing", "callback", "own_error"])
def test_a_signal_is_one_line_and_its_status_whatever_code_it_meets(number, program):
    with started(program) as process:
        process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (128 + number, f"interrupted by signal {number}\n")


@pytest.mark.parametrize(
    ("program", "first", "then"), [("held", "held", "let go"), ("importing", "importing", "imported")]
)
def test_a_signal_waits_for_the_end_of_a_held_block_and_of_an_import(program, first, then):
    with started(program) as process:
        assert process.stdout.readline() == f"{first}\n"
        process.send_signal(signal.SIGINT)
        told, said = process.communicate("go on\n", timeout=20)
    assert (process.returncode, told, said) == (130, f"{then}\n", "interrupted by signal 2\n")


def test_a_signal_while_the_interpreter_ends_changes_no_status_and_ends_what_hangs():
    with started("ending") as process:
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (7, "")


ARGUMENTS = {"harness": ["+experiment=smoke"], "harness.testbed": ["up", "--inventory", "hosts.yml"]}
COMMANDS = ["harness", "harness.report", "harness.validate", "harness.diagnose", "harness.testbed"]
COMMANDS += ["energymon", "loaders.streaming", "loaders.nosql", "loaders.mosaic", "loaders.tfdata"]
SLOW = """
import os, sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "{name}":
            os.write(2, b"importing")
            for _ in range(300):
                time.sleep(0.1)
sys.meta_path.insert(0, Slow())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_while_a_command_imports_its_packages_is_one_line(command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW.format(name="argparse" if command == "energymon" else "pydantic"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", command, *ARGUMENTS.get(command, [])]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stderr.read(9) == "importing"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (130, "interrupted by signal 2\n")


def test_a_program_goes_on_when_the_reader_of_its_output_has_gone(tmp_path):
    program = f"""
from pathlib import Path
from harness.system.program import run_program

def program():
    for number in range(20_000):
        print("a line that nobody reads", number, flush=True)
    Path({str(tmp_path / "work")!r}).touch()
    return 7

run_program(program)
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
    code = "from harness.system.program import run_program; run_program(lambda: print('2.0× ≤ 3 µ'))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "2.0x <= 3 ?\n"


@pytest.mark.parametrize(
    "command", ["harness", "harness.report", "harness.testbed", "energymon", "loaders.streaming", "joulefeed"]
)
def test_the_version_of_every_command_is_the_projects(command):
    done = subprocess.run([sys.executable, "-m", command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"joulefeed {version('joulefeed')}\n"


ENDING = """
import sys
from pathlib import Path

from harness.system.program import run_to_end


class Freed:
    def __init__(self):
        self.path = Path(sys.argv[1], "freed")

    def __del__(self):
        self.path.touch()


def program():
    import atexit, ctypes, tempfile, threading, time

    global freed, folder
    freed = Freed()
    atexit.register(Path(sys.argv[1], "atexit").touch)
    folder = tempfile.TemporaryDirectory(dir=sys.argv[1])
    threading.Thread(target=lambda: time.sleep(0.3) or Path(sys.argv[1], "thread").touch()).start()
    ctypes.CDLL(None).printf(b"of a library ")
    print("of Python", end="", file=sys.stderr)
    return int(sys.argv[2])


run_to_end(program)
"""


@pytest.mark.parametrize(("status", "frees"), [(0, set()), (3, {"freed"})])
def test_a_cell_ends_its_threads_and_writes_all_output_before_it_ends_at_once(tmp_path, status, frees):
    argv = [sys.executable, "-c", ENDING, str(tmp_path), str(status)]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "of a library ", "of Python")
    assert {path.name for path in tmp_path.iterdir()} == {"atexit", "thread"} | frees
