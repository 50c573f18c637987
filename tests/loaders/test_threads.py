"""Whatever has threads is closed before the interpreter ends, in workers too, and once it is gone it is forgotten."""

import subprocess
import sys
import weakref
from pathlib import Path

from loaders.threads import close_at_exit

REPO = Path(__file__).parents[2]
SCRIPT = """
import multiprocessing, os, sys
from loaders.threads import close_at_exit

class Told:
    def __init__(self, name):
        self.name = name
        close_at_exit(self)

    def close(self):
        os.write(1, f"{self.name} is closed\\n".encode())

def work():
    global mine
    mine = Told("the worker's")

if __name__ == "__main__":
    kept, gone = Told("the main one"), Told("one that is gone")
    del gone
    for method in ("fork", "spawn"):
        worker = multiprocessing.get_context(method).Process(target=work)
        worker.start()
        worker.join()
    if os.fork() == 0:
        sys.exit()
    os.wait()
"""


class Closing:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_each_process_closes_its_own_and_no_other_s_at_its_end(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    argv, env = [sys.executable, script], {"PYTHONPATH": str(REPO)}
    ended = subprocess.run(argv, check=False, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["the worker's is closed"] * 2 + ["the main one is closed"]


def test_what_is_closed_at_the_end_is_not_kept_until_then():
    closing = Closing()
    close_at_exit(closing)
    gone = weakref.ref(closing)
    del closing
    assert gone() is None
