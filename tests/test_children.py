"""The children of every user of `Child` end with a parent that is killed, even where they are stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.process

# Decoding processes belong to an executor: tests/loaders/streaming/decoding/test_process_decode.py has their end.
NODE = "from harness.testbed.base import Node; node = Node('storage', 'children', address='127.0.0.1')\n"
DATASET = (
    "from pathlib import Path; from harness.datasets.imagenet_like import ImagenetLike\n"
    "def make(samples, heard): return ImagenetLike('small', samples, classes=3, mean_kb=12).open(Path('c'), heard)\n"
)
# Each starts its children, says how many there are at least, and goes on.
USERS = {
    "a child": "from joulefeed.child import Child; a = Child([sys.executable, '-c', 'input()']); up(1)",
    "a child of a thread": (
        "from joulefeed.child import Child; a = Child(['sleep', '97'], killed_with_parent=True); up(1)"
    ),
    "the energy agent and its sender": (
        "from energymon import Agent\n"
        "options = ['--influxdb-url=http://127.0.0.1:9', '--influxdb-org=o', '--influxdb-bucket=b']\n"
        "with Agent(estimate='missing', options=options): up(2)"
    ),
    "a node": NODE + "a = node.start(['sleep', '97']); up(1)",
    "the probe's server": (
        NODE + "from harness.testbed.link.measure.probe import probe_server\nwith probe_server(node): up(1)"
    ),
    "the workers of a generated dataset": DATASET + "make(9000, lambda what, done, total: done and up(1))",
    "the streaming daemon": (
        NODE + DATASET + "from harness.run.daemon import serving\n"
        "from loaders.records.shards.convert import convert\n"
        "samples = make(8, print).samples\n"
        "shards = convert(samples, Path('shards'), key='small', workers=1)\n"
        "with serving(node, '127.0.0.1', shards, {'module': 'loaders.streaming'}, Path('log')): up(1)"
    ),
}
UP = "import sys, time\ndef up(n): print('up', n, flush=True); time.sleep(99)\n"


def end_of(process: psutil.Process) -> bool:
    """Whether a process that is not this one's child ends in time; one that nobody reaps is a zombie."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(20)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True


# One that is stopped ends by the kernel's signal alone, and that ends one that runs too.
@pytest.mark.parametrize(("user", "number"), [("a child", signal.SIGCONT), *((user, signal.SIGSTOP) for user in USERS)])
def test_children_end_with_a_parent_that_is_killed(user: str, number: signal.Signals, tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "TMPDIR": str(tmp_path),
        "INFLUXDB_V2_TOKEN": "t",
    }
    with subprocess.Popen(
        [sys.executable, "-c", UP + USERS[user]], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as parent:
        assert parent.stdout is not None
        try:
            while not (line := parent.stdout.readline()).startswith("up "):
                assert line, "it ended before its children were up"
            children = psutil.Process(parent.pid).children(recursive=True)
            assert len(children) >= int(line.split()[1])
            for child in children:
                child.send_signal(number)
            deadline = time.monotonic() + 20
            while number == signal.SIGSTOP and {child.status() for child in children} != {psutil.STATUS_STOPPED}:
                assert time.monotonic() < deadline, "they do not stop"
                time.sleep(0.01)
        finally:
            parent.kill()
    assert [child for child in children if not end_of(child)] == []
