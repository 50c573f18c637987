"""A signal at any moment of any command: one line, the signal's status, and nothing left.

JOULEFEED_INTERRUPTS=100 sends a hundred signals, in all kinds of runs, where their servers and environments are there.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from harness.system.process import REAPER_VARIABLE, RUN_VARIABLE
from harness.testbed.mounts.table import mounts_below
from harness.testbed.state import RunNames, state_root
from tests.energymon.influx.server import ORG, Server
from tests.integration.runs import SMALL, run, wait_until
from tests.integration.test_netns import NO_LINK

REPO = Path(__file__).parents[2]
MARK = "JOULEFEED_TEST"
COUNT = int(os.environ.get("JOULEFEED_INTERRUPTS", "10"))
SEED = int(os.environ.get("JOULEFEED_INTERRUPTS_SEED", "7"))
pytestmark = [
    pytest.mark.process,
    pytest.mark.root,
    pytest.mark.timeout(300 + 60 * COUNT),
    pytest.mark.skipif(os.geteuid() != 0, reason="a run's own /dev/shm is a mount, which needs root"),
]

SMALLER = [*SMALL, "figures=[emlio_fig5]", "epochs=1", "energy.idle_s=0", "~loaders.dali"]
LINK = ["testbed=netns", "~regimes.local", "+regime@regimes.lan_1ms=lan_1ms", "~loaders.pytorch"]
ALONE = ["~loaders.pytorch", "~loaders.streaming"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "joulefeed"
TREE = REPO / "tests"
EARLY = re.compile(r"/(\w+/__init__|joulefeed/signals)\.py\"")
"""The files that run before signals are heard."""

# What each kind runs, how long that takes in s on two cores, and its share of many signals.
SMOKE = ["-m", "harness", "+experiment=smoke", *SMALLER]
KINDS = {
    "local": ([*SMOKE], 20, 30),
    "link": ([*SMOKE, *LINK], 25, 14),
    "influxdb": ([*SMOKE, "~loaders.streaming", "store=influxdb"], 16, 7),
    "nosql": ([*SMOKE, *ALONE, "+loader@loaders.nosql=nosql"], 50, 4),
    "mosaic": ([*SMOKE, *ALONE, "+loader@loaders.mosaic=mosaic"], 40, 4),
    "tfdata": ([*SMOKE, *ALONE, "+loader@loaders.tfdata=tfdata"], 40, 4),
    "multirun": ([*SMOKE, "~loaders.streaming", "figures=[]", "--multirun", "seed=0,1"], 25, 5),
    "resume": (["-m", "harness", "resume=latest"], 14, 7),
    "report": (["-m", "harness.report", "FOLDER"], 6, 8),
    "validate": (["-m", "harness.validate", "FOLDER"], 3, 3),
    "diagnose": (
        ["-m", "harness.diagnose", "workload=resnet50", "accelerator=emulated", "workload.batch_size=4"],
        18,
        5,
    ),
    "testbed doctor": (["-m", "harness.testbed", "doctor"], 6, 3),
    "testbed clean": (["-m", "harness.testbed", "clean"], 1, 1),
    "energymon doctor": (["-m", "energymon", "doctor", "--estimate", "missing"], 4, 2),
    "convert": (["-m", "loaders.streaming", "convert", "--from", "image-tree", "TREE", "--out", "OUT"], 4, 3),
}
NEEDS = {
    "influxdb": "influxd-*",
    "nosql": "cassandra-*/.ready",
    "mosaic": "mosaic-*/.ready",
    "tfdata": "tensorflow-*/.ready",
}
FEW = ("local", "link", "resume", "report", "diagnose")
"""The kinds of a run of all tests."""
OWN_SHM = 'mount --make-private /dev/shm && mount --bind "$0" /dev/shm && exec "$@"'


class Run:
    """A command in a mount namespace of its own, with folders of its own for what would be left."""

    def __init__(self, argv, folder, environment):
        self.mark, self.ids = folder.name, set()
        # Sockets have short paths.
        self.places = [Path(tempfile.mkdtemp(prefix="joulefeed-")), folder / "shm"]
        self.places[1].mkdir(parents=True)
        self._said = (folder / "stderr").open("w+")
        private = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", OWN_SHM, str(self.places[1])]
        self.process = subprocess.Popen(
            [*private, sys.executable, *argv],
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env={**os.environ, **environment, MARK: self.mark, "TMPDIR": str(self.places[0])},
            cwd=REPO,
            start_new_session=True,
        )
        while self.process.poll() is None and not self._is_python():
            time.sleep(0.001)

    def _is_python(self):
        return Path(f"/proc/{self.process.pid}/cmdline").read_bytes().startswith(sys.executable.encode() + b"\0-m\0")

    def watch(self):
        """Note the ids of its runs, by which what they leave is found."""
        while self.process.poll() is None:
            for variables in self.processes().values():
                found = (one.partition("=") for one in variables)
                self.ids |= {value for name, _, value in found if name in (RUN_VARIABLE, REAPER_VARIABLE)}
            time.sleep(0.2)

    def processes(self):
        """Return the environments of its processes by their ids, however they were started."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                found[int(path.parent.name)] = path.read_bytes().decode(errors="replace").split("\0")
        return {pid: variables for pid, variables in found.items() if f"{MARK}={self.mark}" in variables}

    def left(self):
        """Return what is there of it."""
        found = [f"process {pid}" for pid in self.processes()]
        found += [path for place in self.places for path in place.iterdir()]
        for run_id in self.ids:
            names = RunNames(run_id, state_root())
            found += mounts_below(names.folder)
            found += [p for p in (*names.namespace_paths, names.folder, names.state_file) if p.exists()]
        return found

    def end(self):
        """Return its status, what it said, and what is left once the reaper had its time."""
        try:
            status = self.process.wait(150)
        except subprocess.TimeoutExpired:
            status = "no end"
            os.killpg(self.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.left(), 40)
        left = self.left()
        self._said.seek(0)
        said = self._said.read()
        self._said.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.places[0])
        return status, said, left


def verdict(number, status, said, left, *, was_over):
    """Return how it ended: as it must, or with `wrong` at the begin."""
    lines = [line for line in said.splitlines() if "interrupted by signal" in line]
    if left:
        return f"wrong: left {left}"
    if status == 128 + number and len(lines) == 1 and not re.search("Traceback|Exception ignored", said):
        return "one line"
    # Python's own traceback of SIGINT, or the kernel's end by the others, until joulefeed.signals has begun.
    frames = [line for line in said.splitlines() if f'File "{REPO}' in line]
    if status == -number and all(EARLY.search(line) for line in frames) and "interrupted" not in said:
        return "the interpreter had not begun"
    if status in (0, 6) and not lines and "Traceback" not in said:
        return "was over" if was_over else "the interpreter ended"
    return f"wrong: status {status}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("interrupts")


@pytest.fixture(scope="module")
def server(folder):
    if COUNT < 100:
        yield None
        return
    server = Server(Path(next(iter(sorted(CACHE.glob(NEEDS["influxdb"]))))), folder / "influxdb")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def measured(folder):
    """A folder of results, which is resumed, drawn and judged, and how slow this machine is beside `KINDS`."""
    results = folder / "measured"
    began = time.monotonic()
    done = run([sys.executable, *SMOKE, f"results_dir={results}", f"cache_dir={folder / 'cache'}"], cwd=REPO)
    assert done.returncode in (0, 6), done.stderr
    return (results / "latest").resolve(), max(1.0, (time.monotonic() - began) / KINDS["local"][1])


def command(kind, folder, measured, server):
    """Return the command of a kind, and what its environment has on top."""
    argv, _, _ = KINDS[kind]
    results = folder / "results"
    argv = [{"FOLDER": str(measured), "TREE": str(TREE), "OUT": str(folder / "out")}.get(one, one) for one in argv]
    environment = {}
    if kind == "convert":
        tree = min((folder.parent / "cache").glob("datasets/*/"), key=lambda made: made.stat().st_mtime_ns)
        argv = [str(tree) if one == str(TREE) else one for one in argv]
    if kind == "resume":
        # As a run that was ended in its last cell.
        subprocess.run(["cp", "-r", measured, results / measured.name], check=True)
        (results / "latest").symlink_to(measured.name)
        last = json.loads((measured / "plan.json").read_text())["cells"][-1]["cell_id"]
        (results / measured.name / "cells" / last).rename(results / measured.name / "cells" / f"{last}.partial")
    if argv[1] in ("harness", "harness.diagnose"):
        argv = [*argv, f"results_dir={results}", f"cache_dir={folder.parent / 'cache'}"]
    if kind == "influxdb":
        argv = [*argv, f"store.url={server.url}", f"store.org={ORG}", "store.bucket=first"]
        environment["INFLUXDB_V2_TOKEN"] = server.token
    return argv, environment


def interrupt(number, kind, moment_s, folder, measured, server):
    """Run a command and send the signal at a moment; return how that ended."""
    (folder / "results").mkdir(parents=True)
    argv, environment = command(kind, folder, measured, server)
    run = Run(argv, folder, environment)
    watching = threading.Thread(target=run.watch)
    watching.start()
    try:
        run.process.wait(moment_s)
    except subprocess.TimeoutExpired:
        os.kill(run.process.pid, number)
    was_over = run.process.returncode is not None
    status, said, left = run.end()
    watching.join()
    found = verdict(number, status, said, left, was_over=was_over)
    return f"{kind}, {number.name} after {moment_s:.3f} s: {found}" + (f"\n{said[-3000:]}" if "wrong" in found else "")


def moments(slowness):
    """Yield so many seeded (signal, kind, second): a quarter of them while the command starts."""
    draw = random.Random(SEED)
    kinds = [kind for kind in KINDS if COUNT >= 100 and (kind not in NEEDS or list(CACHE.glob(NEEDS[kind])))] or FEW
    kinds = [kind for kind in kinds if kind != "link" or not NO_LINK]
    shares = [KINDS[kind][2] for kind in kinds]
    for number in range(COUNT):
        kind = draw.choices(kinds, shares)[0] if COUNT >= 100 else kinds[number % len(kinds)]
        until_s = min(1.5, KINDS[kind][1]) if number % 4 == 3 else KINDS[kind][1]
        yield draw.choice([signal.SIGINT, signal.SIGTERM]), kind, draw.uniform(0, until_s * slowness)


@pytest.mark.slow
def test_a_signal_at_any_moment_is_one_line_and_leaves_nothing(folder, measured, server):
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(interrupt, *one, folder / f"{number}-{os.getpid()}", measured[0], server)
            for number, one in enumerate(moments(measured[1]))
        ]
    ends = [one.result() for one in found]
    print("\n".join(ends), Counter(one.splitlines()[0].rpartition(": ")[2] for one in ends), sep="\n")
    assert not [one for one in ends if "wrong" in one]


STUBBORN = """
import sys, time
from joulefeed.signals import run_program

def program():
    try:
        print("running", flush=True)
        time.sleep(60)
    except BaseException:  # as a library may
        print("swallowed", flush=True)
        time.sleep(60)

run_program(program)
"""


def test_a_second_signal_ends_a_program_whose_library_swallowed_the_first():
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "swallowed\n"
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert (process.returncode, process.stderr.read()) == (143, "interrupted by signal 15 again; ended at once\n")
