"""The end of a cell's process: all that was to happen at its end happens, and nothing is freed one by one."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
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
def test_a_program_ends_its_threads_and_writes_all_output_before_it_ends_at_once(tmp_path, status, frees):
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path), str(status)]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "of a library ", "of Python")
    assert {path.name for path in tmp_path.iterdir()} == {"atexit", "thread"} | frees
