"""Trees and boards that count in real time, and agents in processes of their own."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from energymon import START, Reading, SqliteStore, Ticks
from energymon.sensors.perf import open_perf
from tests.energymon import trees
from tests.energymon.nvml import fake
from tests.integration.runs import wait_until

REPO = Path(__file__).parents[2]
FOREVER = 2**62


def wait_for(condition, seconds=40.0):
    found = wait_until(condition, seconds)
    assert found, "it did not come to pass"
    return found


def stored(path: Path):
    """Return the readings, ticks and events of a store."""
    with SqliteStore.open(path) as store:
        return store.readings(0, FOREVER), one_by_one(store.ticks(0, FOREVER)), store.events()


def event_kinds(path: Path) -> list[str]:
    return [event.kind for event in stored(path)[2]]


def one_by_one(ticks: list[Ticks]) -> list[Ticks]:
    """Return ticks that follow each other as so many single ones."""
    return [Ticks(t.first_ns + k * t.interval_ns, t.node, t.missed) for t in ticks for k in range(t.count)]


def assert_nothing_is_made_up(readings: list[Reading], rapl: trees.Tree) -> None:
    """The joules between two readings of a life are what the counter went by between them, to a microjoule."""
    by_domain = {"cpu": rapl.packages, "dram": rapl.drams}
    zones = {(f"package-{i}", domain): zone for domain, of in by_domain.items() for i, zone in enumerate(of)}
    assert set(zones) <= {(r.device, r.domain) for r in readings}
    for (device, domain), zone in zones.items():
        lives: list[list[int]] = []
        for row in sorted(readings, key=lambda r: r.tick_ns):
            if (row.device, row.domain) == (device, domain):
                if row.flags == START:
                    lives.append([])
                lives[-1].append(round(row.joules * 1e6))
                assert row.joules == pytest.approx(lives[-1][-1] / 1e6, rel=1e-9)
        shown = set(zone.shown_uj)
        for life in lives:
            # A counter that stood still for a while on a busy machine, and jumped, begins a life of the same agent.
            series = [uj - life[0] for uj in life]
            assert series == sorted(series)
            firsts = [first for first in shown if first + series[-1] in shown]
            assert any(all(first + uj in shown for uj in series) for first in firsts), (device, domain)


def read(sensor):
    """Return a sensor's points, their times monotonic ns."""
    return sensor.decode(sensor.sample(), 0)


def channels(found):
    return [(c.device, c.domain) for sensor in found.sensors for c in sensor.channels]


@pytest.fixture
def plant(tmp_path):
    """Make a tree of trees.TREES by name, below a root of its own."""
    planted = []

    def make(name: str) -> trees.Tree:
        tree = trees.TREES[name](tmp_path / f"sys{len(planted) or ''}")
        planted.append(tree)
        return tree

    yield make
    for tree in planted:
        tree.close()


@pytest.fixture
def rapl(plant):
    """Two sockets with DRAM, psys and MMIO; package 0 is 20 J from its wrap: a quarter of a second."""
    return plant("intel-two-sockets")


@pytest.fixture(scope="session")
def perf_allowed(tmp_path_factory):
    """Skip where the kernel does not let this user count on a whole CPU."""
    tree = trees.intel_one_socket(tmp_path_factory.mktemp("perf") / "sys")
    tree.pmu()
    found = open_perf(tree.root)
    tree.close()
    if not found.sensors:
        pytest.skip(f"perf events are not permitted here: {found.missing[0].reason}")
    found.sensors[0].close()


@pytest.fixture
def online_cpus():
    """The CPUs that events can be opened on."""
    return os.sched_getaffinity(0)


@pytest.fixture
def as_nobody():
    """Return a context in which this process may read files that all may read, and nothing else."""

    @contextlib.contextmanager
    def lower():
        if os.geteuid() != 0:
            pytest.skip("needs root to become somebody who is not")
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    return lower


@pytest.fixture
def public_path():
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="energymon-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The fake NVML, which agents take by `--nvml`."""
    if fake.compiler() is None:
        pytest.skip("the fake NVML is C: no cc on this host")
    return fake.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def boards(tmp_path, monkeypatch):
    """Set what the fake NVML shows; boards(boards=2, lost=[1])."""
    control = tmp_path / "boards"
    monkeypatch.setenv("FAKE_NVML", str(control))
    return fake.Boards(control)


class Agent:
    """An agent's process, ready."""

    def __init__(self, store: Path, *options: str, env: dict[str, str], stdin: int = subprocess.DEVNULL) -> None:
        self.store = store
        self.process = subprocess.Popen(
            [sys.executable, "-m", "energymon", "run", "--store", store, "--node", "n", *options],
            cwd=REPO,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        self.ready = json.loads(line) if line else None

    def end(self) -> str:
        """Stop it in order; return what it said on stderr."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]


@pytest.fixture
def start_agent(tmp_path):
    """Start an agent on `store`, which is ready or has failed when this returns."""
    agents: list[Agent] = []

    def start(*options: str, store: Path | None = None, stdin: int = subprocess.DEVNULL) -> Agent:
        env = {**os.environ, "PYTHONPATH": str(REPO)}
        agent = Agent(store or tmp_path / "energy.sqlite", *options, env=env, stdin=stdin)
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.communicate()
