"""A powercap tree that counts in real time, a fake NVML, and agents in processes of their own."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

INTEL_RANGE_UJ = 262_143_328_850
HERE = Path(__file__).parent
REPO = HERE.parents[1]


class Zone:
    """One zone's directory; `show` writes its counter as the kernel would show it."""

    def __init__(self, path: Path, name: str, *, watts: float, start_uj: int, range_uj: int = INTEL_RANGE_UJ):
        path.mkdir(parents=True)
        self.path = path
        self.watts = watts
        self.range_uj = range_uj
        self.start_uj = start_uj
        self.shown_uj: list[int] = []
        """Every value shown, unwrapped."""
        self.broken = False
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self._fd = os.open(path / "energy_uj", os.O_RDWR | os.O_CREAT, 0o400)
        self.show(start_uj)

    def show(self, unwrapped_uj: int) -> None:
        self.shown_uj.append(unwrapped_uj)
        self.write(f"{unwrapped_uj % self.range_uj}")

    def write(self, text: str) -> None:
        """Replace the whole value at once, as long as any value can be, so that no reader sees half of it."""
        os.pwrite(self._fd, f"{text:<20}\n".encode(), 0)

    def truncate(self) -> None:
        self.broken = True
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        os.close(self._fd)


class Rapl:
    """A sysfs root with two sockets, laid out as the kernel does; `running` counts in real time."""

    def __init__(self, root: Path, start_uj: int) -> None:
        self.root = root
        devices = root / "devices" / "virtual" / "powercap"
        rapl = devices / "intel-rapl"
        self.packages = [
            Zone(rapl / "intel-rapl:0", "package-0", watts=80, start_uj=start_uj),
            Zone(rapl / "intel-rapl:1", "package-1", watts=50, start_uj=12_345),
        ]
        self.drams = [
            Zone(rapl / "intel-rapl:0" / "intel-rapl:0:1", "dram", watts=12, start_uj=777, range_uj=65_712_999_613),
            Zone(rapl / "intel-rapl:1" / "intel-rapl:1:1", "dram", watts=9, start_uj=0, range_uj=65_712_999_613),
        ]
        self.others = [
            Zone(rapl / "intel-rapl:0" / "intel-rapl:0:0", "core", watts=60, start_uj=0),
            Zone(rapl / "intel-rapl:2", "psys", watts=200, start_uj=0),
            Zone(devices / "intel-rapl-mmio" / "intel-rapl-mmio:0", "package-0", watts=80, start_uj=0),
        ]
        links = root / "class" / "powercap"
        links.mkdir(parents=True)
        (links / "intel-rapl").symlink_to(rapl)
        for zone in self.zones:
            (links / zone.path.name).symlink_to(zone.path)

    @property
    def zones(self) -> list[Zone]:
        return [*self.packages, *self.drams, *self.others]

    @contextlib.contextmanager
    def running(self):
        stop = threading.Event()
        began = time.monotonic()

        def count() -> None:
            while not stop.wait(0.004):
                elapsed_s = time.monotonic() - began
                for zone in self.zones:
                    if not zone.broken:
                        zone.show(zone.start_uj + round(zone.watts * elapsed_s * 1e6))

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def rapl(tmp_path):
    """Package 0 is 20 J from its wrap: a quarter of a second."""
    tree = Rapl(tmp_path / "sys", start_uj=INTEL_RANGE_UJ - 20_000_000)
    yield tree
    for zone in tree.zones:
        zone.close()


@pytest.fixture
def boards(tmp_path, monkeypatch):
    """Set what the fake NVML shows; boards(boards=2, lost=[1])."""
    control = tmp_path / "nvml.json"
    monkeypatch.setenv("FAKE_NVML", str(control))
    monkeypatch.syspath_prepend(str(HERE))

    def show(**state) -> None:
        fresh = control.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(control)

    show(boards=2)
    return show


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
        env = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{HERE}"}
        agent = Agent(store or tmp_path / "energy.sqlite", *options, env=env, stdin=stdin)
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.communicate()
