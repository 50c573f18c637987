"""Threads of loaders: each is closed before its process ends, and none of them ends without an error."""

import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

from loaders.records.epochs import BoundedQueue
from loaders.sample_aware.coordinator.output_queue import OutputQueue, ReadyBatch
from loaders.shared import threads
from loaders.shared.threads import DaemonThreads, close_at_exit

REPO = Path(__file__).parents[2]
SCRIPT = """
import multiprocessing, os, sys
from loaders.shared.threads import close_at_exit

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


@pytest.mark.process
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


ONE_CORE = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
from loaders.shared.threads import DaemonThreads
import torch
print(DaemonThreads(1, "test").submit(torch.get_num_threads).result(timeout=60))
"""


@pytest.mark.process
def test_threads_start_where_the_path_of_openmp_has_blanks_and_other_letters(tmp_path):
    folder = tmp_path / "jöule  feed"
    folder.mkdir()
    library = folder / "libgomp-own.so.1"
    library.write_bytes(next(Path(torch.__file__).parent.joinpath("lib").glob("libgomp*")).read_bytes())
    argv, env = [sys.executable, "-c", ONE_CORE, library], {**os.environ, "PYTHONPATH": str(REPO)}
    ended = subprocess.run(argv, check=False, env=env, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "1"), ended.stderr


def test_a_thread_that_fails_at_its_start_fails_its_tasks(monkeypatch):
    def fail() -> None:
        raise OSError("no such library")

    monkeypatch.setattr(threads, "use_one_thread", fail)
    pool = DaemonThreads(1, "test")
    for _ in range(2):
        with pytest.raises(OSError, match="no such library"):
            pool.submit(int).result(timeout=10)
    pool.shutdown()


def test_a_queue_of_one_item_hands_over_each_however_threads_take_turns():
    queue, before = BoundedQueue(1), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threading.Thread(target=lambda: [queue.put(n) for n in range(20000)] and queue.close(), daemon=True).start()
        assert list(iter(queue.get, None)) == list(range(20000))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("queue", "item", "more"), [(BoundedQueue(1), 0, ()), (OutputQueue(0), ReadyBatch([0], [0]), (int,))]
)
def test_a_signal_at_any_moment_of_a_wait_is_its_own_exception_and_the_queue_goes_on(queue, item, more):
    over = threading.Event()

    def feed():
        while not over.wait(random.uniform(0, 1e-4)):
            queue.put(item)

    threading.Thread(target=feed, daemon=True).start()
    before, limit = signal.signal(signal.SIGALRM, signal.default_int_handler), signal.getitimer(signal.ITIMER_REAL)
    try:
        for _ in range(3000):
            with pytest.raises(KeyboardInterrupt):
                # Again 5 s later: what a signal raises in a callback of the garbage collector is ignored.
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4), 5)
                while True:
                    queue.get(*more)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert queue.get(*more) is item
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)
        over.set()
