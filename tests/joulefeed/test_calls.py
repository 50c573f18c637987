"""Calls between processes: answers, errors, progress, silence, and ends that are gone."""

import socket
import sys
import threading

import pytest

from joulefeed.calls import Answers, CallError, SocketChannel, call
from joulefeed.child import Child, ChildError

PROGRAM = """
import os, time
from joulefeed.calls import Answers
def add(a, b): return a + b
def count(to):
    for number in range(to):
        answers.progress(number, to)
    return to
def fail(): raise LookupError("no such disk")
def leave(): os._exit(3)
def sleep(): time.sleep(60)
answers = Answers({f.__name__: f for f in (add, count, fail, leave, sleep)}, (LookupError,))
answers.run()
"""


@pytest.fixture
def child():
    with Child([sys.executable, "-c", PROGRAM]) as child:
        yield child


@pytest.mark.process
def test_a_call_is_answered(child):
    assert call(child, "add", timeout_s=20, a=1, b=2) == 3
    assert call(child, "add", timeout_s=20, a="x", b="y") == "xy"


@pytest.mark.process
def test_progress_comes_before_the_answer(child):
    seen = []
    assert call(child, "count", timeout_s=20, progress=lambda *values: seen.append(values), to=3) == 3
    assert seen == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.process
def test_errors_of_the_other_process_are_answers_and_it_goes_on(child):
    with pytest.raises(CallError, match="no such disk") as failed:
        call(child, "fail", timeout_s=20)
    assert failed.value.kind == "LookupError"
    with pytest.raises(CallError, match="one of add, count") as failed:
        call(child, "subtract", timeout_s=20)
    with pytest.raises(CallError, match="missing a required argument") as failed:
        call(child, "add", timeout_s=20, a=1)
    assert failed.value.kind == "TypeError"
    assert call(child, "add", timeout_s=20, a=1, b=1) == 2


@pytest.mark.process
def test_a_silent_process_and_one_that_ends_are_errors(child):
    with pytest.raises(ChildError, match="exited with status 3"):
        call(child, "leave", timeout_s=20)
    with Child([sys.executable, "-c", PROGRAM]) as other:
        assert call(other, "add", timeout_s=20, a=1, b=1) == 2
        with pytest.raises(CallError, match="no answer to 'sleep'"):
            call(other, "sleep", timeout_s=0.1)
        other.stop(eof_s=0)


def test_a_socket_carries_calls():
    ours, theirs = socket.socketpair()

    def serve():
        channel = SocketChannel(theirs)
        answers = Answers({"add": lambda a, b: a + b}, write=lambda line: theirs.sendall(line.encode()))
        while (line := channel.read_line(20)) not in {None, b"bye"}:
            answers.answer(line)
        theirs.close()

    with ours:
        thread = threading.Thread(target=serve)
        thread.start()
        channel = SocketChannel(ours)
        assert call(channel, "add", timeout_s=20, a=1, b=2) == 3
        ours.sendall(b"not json\n")
        assert b"expected a JSON object" in channel.read_line(20)
        ours.sendall(b"bye\n")
        with pytest.raises(EOFError):
            channel.read_line(20)
        thread.join(20)


def test_an_answer_that_is_no_json_is_an_error():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"Welcome to host7!\n")
        with pytest.raises(CallError, match="expected an answer in JSON"):
            call(SocketChannel(ours), "add", timeout_s=5, a=1)
