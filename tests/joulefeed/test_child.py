"""A child process is waited for, spoken to and ended, whatever it does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from joulefeed.child import Child, ChildError
from tests.integration.runs import has_ended, wait_until

pytestmark = pytest.mark.process

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(99)"
ECHO = "import sys; print('{}', flush=True)\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"


def start(code, **options):
    return Child([sys.executable, "-c", code], **options)


def test_it_says_that_it_is_ready_answers_lines_and_ends_with_its_input():
    with start("import json, sys; print(json.dumps({'port': 7}), flush=True)\n" + ECHO) as child:
        assert child.ready(20) == {"port": 7}
        assert child.read_line(20) == b"{}"
        child.send(b"one\ntwo\n")
        assert [child.read_line(20), child.read_line(20)] == [b"ONE", b"TWO"]
        assert child.read_line(0) is None
        assert child.is_alive
        assert child.stop() == 0
    assert not child.is_alive


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('no sensor', file=sys.stderr); sys.exit(3)", "status 3: no sensor"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os, time; os.close(1); time.sleep(99)", "output"),
        ("print('hello', flush=True); input()", "JSON .*b'hello'"),
        ("print('[1]', flush=True); input()", r"JSON .*b'\[1\]'"),
    ],
)
def test_a_child_that_does_not_get_ready_is_described(code, reason, monkeypatch):
    monkeypatch.setattr(Child.describe_end, "__defaults__", (0.5,))
    with start(code, keep_stderr=True) as child, pytest.raises(ChildError, match=reason):
        child.ready(20)


def test_a_child_that_never_says_that_it_is_ready_is_described_with_its_last_words():
    code = "import sys, time; print('still loading', file=sys.stderr, flush=True); time.sleep(99)"
    with start(code, keep_stderr=True) as child:
        while not child.stderr_lines(1):
            assert child.is_alive
        with pytest.raises(ChildError, match=r"0\.1 s.*still loading"):
            child.ready(0.1)
        assert child.stop(eof_s=0.1) == -signal.SIGTERM


def test_a_child_that_ignores_the_signal_to_end_is_killed_and_so_is_one_that_is_stopped():
    for number in (signal.SIGCONT, signal.SIGSTOP):
        child = start(STUBBORN)
        child.ready(20)
        child.signal(number)
        assert child.stop(eof_s=0.1, term_s=0.1) == -signal.SIGKILL
        assert child.stop() == -signal.SIGKILL


def test_what_it_left_in_its_group_is_killed():
    code = "import subprocess; print(subprocess.Popen(['sleep', '98']).pid, flush=True)"
    with start(code) as child:
        left = int(child.read_line(20))
    assert wait_until(lambda: has_ended(left))


def test_output_larger_than_a_pipe_is_returned_whole_or_in_nobodys_way():
    code = "import sys; sys.stdin.read(); sys.stdout.buffer.write(b'x' * 1_000_000)"
    with start(code) as child:
        assert child.finish(20) == b"x" * 1_000_000
        assert child.process.returncode == 0
    with start("import sys; sys.stdout.write('x' * 1_000_000)", keep_stderr=True) as child:
        child.read_line(0)
        assert child.stop() != -signal.SIGKILL
    with start(STUBBORN) as child:
        assert child.finish(0.1) is None
        child.stop(eof_s=0, term_s=0)


def test_a_message_for_a_child_that_is_gone_is_an_error_that_says_how_it_ended():
    with start("import sys; sys.exit(4)") as child, pytest.raises(ChildError, match="status 4"):
        while True:
            child.send(b"x" * 100_000)


def test_stderr_is_appended_to_a_file_and_only_the_childs_own_lines_are_its_words(tmp_path):
    log = tmp_path / "log"
    log.write_text("of another one\n")
    with start("import sys; print('mine', file=sys.stderr)", stderr=log) as child:
        assert child.describe_end(20) == "exited with status 0: mine"
        assert child.stderr_lines(9) == "mine"
    assert log.read_text() == "of another one\nmine\n"


def test_nothing_is_left_open():
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for options in ({}, {"keep_stderr": True}, {"stdin": subprocess.DEVNULL}, {"own_group": False}):
        with start("pass", **options) as child:
            assert (os.getpgid(child.pid) == child.pid) == options.get("own_group", True)
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/command"], keep_stderr=True)
    assert count() == before


BUILDER = """
import subprocess, sys
from joulefeed.child import Child
script = "sleep 97 & sleep 98 & echo $!; wait"
with Child(["sh", "-c", script], stdin=subprocess.DEVNULL, group_killed_with_parent=True) as child:
    print(child.read_line(20).decode(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_group_ends_with_a_parent_that_is_killed_or_leaves_it(is_killed):
    with subprocess.Popen([sys.executable, "-c", BUILDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        last = int(parent.stdout.readline())
        names = ["sh", "sh", "sleep", "sleep"]
        group = []
        deadline = time.monotonic() + 20
        while sorted(p.name() for p in group) != names and time.monotonic() < deadline:
            group = [psutil.Process(pid) for pid in psutil.pids() if _group_of(pid) == os.getpgid(last)]
        assert sorted(p.name() for p in group) == names
        parent.kill() if is_killed else parent.stdin.close()
    assert wait_until(lambda: all(has_ended(p.pid) for p in group))


def _group_of(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_a_group_that_ends_with_its_parent_says_all_and_ends_by_itself():
    with Child(["sh", "-c", "echo said; exit 3"], stdin=subprocess.DEVNULL, group_killed_with_parent=True) as child:
        assert child.finish(20) == b"said\n"
        assert child.process.returncode == 3
