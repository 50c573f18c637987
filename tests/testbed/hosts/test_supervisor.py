"""The supervisor of a run's processes on another host, by its own standard input, as SSH gives it."""

import json
import os
import signal
import sys
import time
import uuid

import pytest

from harness.system.process import processes_of_run
from harness.testbed.hosts.supervisor import BEAT, STOP
from harness.testbed.hosts.supervisor import RemoteCommand as Command
from harness.testbed.state import RunNames, state_root
from joulefeed.child import Child, ChildError
from tests.integration.runs import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def run_id():
    return f"remote{uuid.uuid4().hex[:8]}"


def supervisor(order):
    child = Child([sys.executable, "-m", "harness.testbed.hosts.supervisor"], keep_stderr=True)
    child.send(order.to_line())
    return child


def test_a_command_gets_the_rest_of_standard_input_and_its_status_comes_back(run_id):
    with supervisor(Command(run_id=run_id, argv=("sh", "-c", "cat; exit 7"), gets_input=True)) as child:
        child.send(b"what follows\n")
        assert child.finish(20) == b"what follows\n"
        assert child.process.returncode == 7


def test_arguments_of_python_are_run_by_the_hosts_own_interpreter_with_the_runs_id(run_id):
    ask = "import os, sys; print(sys.executable, os.environ['JOULEFEED_RUN'])"
    with supervisor(Command(run_id=run_id, argv=("-c", ask), is_python=True, linger_s=20)) as child:
        assert child.finish(20).decode().rstrip().rsplit(" ", 1) == [sys.executable, run_id]


def test_a_command_that_does_not_exist_is_named(run_id):
    with supervisor(Command(run_id=run_id, argv=("no-such-command",))) as child, pytest.raises(ChildError) as caught:
        child.read_line(20)
    assert "127" in str(caught.value)
    assert "no-such-command" in str(caught.value)


def test_what_is_no_order_is_refused_in_one_line():
    with Child([sys.executable, "-m", "harness.testbed.hosts.supervisor"], keep_stderr=True) as child:
        child.send(b"GET / HTTP/1.1\r\n\n")
        with pytest.raises(ChildError, match=r"status 2: joulefeed: expected an order"):
            child.read_line(20)


def test_the_end_of_standard_input_ends_a_command_that_ignores_it_with_all_that_it_started(run_id):
    script = "trap '' TERM; sleep 300 & echo up; while :; do sleep 1; done"
    with supervisor(Command(run_id=run_id, argv=("sh", "-c", script))) as child:
        assert child.read_line(20) == b"up"
        child.process.stdin.close()
        assert wait_until(lambda: not child.is_alive, 40)
        assert processes_of_run(run_id) == []


def test_a_supervisor_that_is_killed_takes_its_command_along(run_id):
    with supervisor(Command(run_id=run_id, argv=("sh", "-c", "echo up; exec sleep 300"))) as child:
        assert child.read_line(20) == b"up"
        os.kill(child.pid, signal.SIGKILL)
        assert wait_until(lambda: not processes_of_run(run_id), 40)


@pytest.mark.parametrize("message", [None, STOP], ids=["silence", "stop"])
def test_heartbeats_keep_a_command_alive_and_their_end_ends_it(run_id, message):
    order = Command(run_id=run_id, argv=("sh", "-c", "cat; exec sleep 300"), text="told\n", silence_s=1.5)
    with supervisor(order) as child:
        assert child.read_line(20) == b"told"
        for _ in range(10):
            time.sleep(0.25)
            child.send(BEAT)
        assert child.is_alive
        if message:
            child.send(message)
        assert wait_until(lambda: not child.is_alive, 40)
        assert processes_of_run(run_id) == []


class TestLease:
    @pytest.fixture
    def lease(self, run_id, request):
        with supervisor(Command(run_id=run_id, silence_s=getattr(request, "param", 100))) as child:
            facts = json.loads(child.read_line(60))
            assert facts["folder"] == str(RunNames(run_id, state_root()).folder)
            yield child

    @pytest.fixture
    def command(self, lease, run_id):
        """A process of the run that nobody ends but its lease."""
        order = Command(
            run_id=run_id, argv=("setsid", "--wait", "sh", "-c", "touch $TMPDIR/left; echo up; exec sleep 300")
        )
        with supervisor(order) as child:
            assert child.read_line(20) == b"up"
            yield child

    @pytest.mark.parametrize(
        ("lease", "end"),
        [
            (100, lambda lease: lease.hang_up()),
            (12, lambda lease: None),
            (100, lambda lease: os.kill(lease.pid, signal.SIGKILL)),
            (100, lambda lease: os.kill(lease.pid, signal.SIGTERM)),
        ],
        indirect=["lease"],
        ids=["end of its input", "silence", "death", "signal"],
    )
    def test_its_end_removes_all_that_the_run_has(self, lease, command, end, run_id):
        end(lease)
        names = RunNames(run_id, state_root())
        assert wait_until(lambda: not names.state_file.exists(), 40)
        assert processes_of_run(run_id) == []
        assert not names.folder.exists()

    def test_a_run_that_has_a_lease_gets_no_second_one(self, lease, run_id):
        with (
            supervisor(Command(run_id=run_id)) as second,
            pytest.raises(ChildError, match=f"run id {run_id} is in use"),
        ):
            second.read_line(60)
        assert lease.is_alive
