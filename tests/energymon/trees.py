"""sysfs as kernels lay it out on machines with RAPL, with counters that advance and wrap in real time.

As a program, `python tests/energymon/trees.py --root DIR --tree NAME`: makes the tree below DIR, prints one line of
JSON ({"sysfs": DIR, "tree": NAME}) when it counts, and counts until the end of its stdin.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE_RANGE_UJ = 262_143_328_850
DRAM_RANGE_UJ = 65_712_999_613
AMD_RANGE_UJ = 65_532_610_987
STEP_S = 0.02
SOFTWARE = 1
"""PERF_TYPE_SOFTWARE, whose event 0, cpu-clock, counts a CPU's nanoseconds: an energy that every kernel has."""


class Zone:
    """One zone's directory; `show` writes its counter as the kernel would show it."""

    def __init__(
        self, path: Path, name: str, *, watts: float, start_uj: int = 0, range_uj: int = PACKAGE_RANGE_UJ
    ) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.watts = watts
        self.range_uj = range_uj
        self.start_uj = start_uj
        self.shown_uj: deque[int] = deque(maxlen=100_000)
        """The values shown, unwrapped."""
        self.broken = False
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        (path / "enabled").write_text("1\n")
        self._fd = os.open(path / "energy_uj", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o400)
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


@dataclass
class Tree:
    """A sysfs root; `running` counts in real time."""

    root: Path
    packages: list[Zone] = field(default_factory=list)
    drams: list[Zone] = field(default_factory=list)
    others: list[Zone] = field(default_factory=list)
    """What must not be added: cores, uncore, psys, and what repeats a package."""

    @property
    def zones(self) -> list[Zone]:
        return [*self.packages, *self.drams, *self.others]

    @property
    def powercap(self) -> Path:
        return self.root / "devices" / "virtual" / "powercap"

    def zone(self, place: str, name: str, **options: float) -> Zone:
        """Make a zone, such as "intel-rapl:0/intel-rapl:0:1", and its link in class/powercap."""
        control = place.partition(":")[0]
        links = self.root / "class" / "powercap"
        links.mkdir(parents=True, exist_ok=True)
        made = Zone(self.powercap / control / place, name, **options)
        link(links / control, self.powercap / control)
        link(links / made.path.name, made.path)
        return made

    def pmu(self, watts: dict[str, float] | None = None, cpus: dict[int, tuple[int, int]] | None = None) -> None:
        """Make the PMU "power" with events that count real nanoseconds as these watts.

        `cpus` are those of its cpumask, each with its package and die. By default there is what powercap has.
        """
        if watts is None:
            watts = {"energy-pkg": self.packages[0].watts, "energy-cores": 1.0, "energy-psys": 200.0}
            if self.drams:
                watts["energy-ram"] = self.drams[0].watts
        if cpus is None:
            places = [re.findall(r"\d+", (zone.path / "name").read_text()) for zone in self.packages]
            cpus = {cpu: (int(place[0]), int(place[-1]) if place[1:] else 0) for cpu, place in enumerate(places)}
        power = self.root / "devices" / "power"
        (power / "events").mkdir(parents=True)
        (power / "format").mkdir()
        (power / "type").write_text(f"{SOFTWARE}\n")
        (power / "cpumask").write_text(",".join(str(cpu) for cpu in cpus) + "\n")
        (power / "format" / "event").write_text("config:0-7\n")
        for name, drawn in watts.items():
            (power / "events" / name).write_text("event=0x00\n")
            (power / "events" / f"{name}.scale").write_text(f"{drawn * 1e-9!r}\n")
            (power / "events" / f"{name}.unit").write_text("Joules\n")
        devices = self.root / "bus" / "event_source" / "devices"
        devices.mkdir(parents=True)
        link(devices / "power", power)
        for cpu, (package, die) in cpus.items():
            topology = self.root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{package}\n")
            (topology / "die_id").write_text(f"{die}\n")

    def count(self, stopped: Callable[[float], bool], step_s: float = STEP_S) -> None:
        """Advance every counter each `step_s` until `stopped`, which waits that long, says so."""
        began = time.monotonic()
        while not stopped(step_s):
            elapsed_us = (time.monotonic() - began) * 1e6
            for zone in self.zones:
                if not zone.broken:
                    zone.show(zone.start_uj + round(zone.watts * elapsed_us))

    @contextlib.contextmanager
    def running(self, step_s: float = 0.004) -> Iterator[Tree]:
        """Count in a thread. No garbage is collected meanwhile: that stops it for longer than a live counter rests."""
        stop = threading.Event()
        thread = threading.Thread(target=self.count, args=(stop.wait, step_s))
        gc.disable()
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            gc.enable()

    def close(self) -> None:
        for zone in self.zones:
            zone.close()


def link(path: Path, target: Path) -> None:
    """Link relatively, as sysfs does, so that a tree can be moved."""
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(target, path.parent))


def intel_one_socket(root: Path) -> Tree:
    """A client with psys and the MMIO interface."""
    tree = Tree(root)
    package = tree.zone("intel-rapl:0", "package-0", watts=28, start_uj=PACKAGE_RANGE_UJ - 7_000_000)
    tree.packages.append(package)
    tree.drams.append(tree.zone("intel-rapl:0/intel-rapl:0:2", "dram", watts=3, start_uj=5_000))
    tree.others += [
        tree.zone("intel-rapl:0/intel-rapl:0:0", "core", watts=20),
        tree.zone("intel-rapl:0/intel-rapl:0:1", "uncore", watts=2),
        tree.zone("intel-rapl:1", "psys", watts=40),
        tree.zone("intel-rapl-mmio:0", "package-0", watts=28),
    ]
    return tree


def intel_two_sockets(root: Path) -> Tree:
    """A server with DRAM, psys and the MMIO interface; package 0 is 20 J, a quarter of a second, from its wrap."""
    tree = Tree(root)
    tree.packages += [
        tree.zone("intel-rapl:0", "package-0", watts=80, start_uj=PACKAGE_RANGE_UJ - 20_000_000),
        tree.zone("intel-rapl:1", "package-1", watts=50, start_uj=12_345),
    ]
    tree.drams += [
        tree.zone("intel-rapl:0/intel-rapl:0:1", "dram", watts=12, start_uj=777, range_uj=DRAM_RANGE_UJ),
        tree.zone("intel-rapl:1/intel-rapl:1:1", "dram", watts=9, range_uj=DRAM_RANGE_UJ),
    ]
    tree.others += [
        tree.zone("intel-rapl:0/intel-rapl:0:0", "core", watts=60),
        tree.zone("intel-rapl:2", "psys", watts=200),
        tree.zone("intel-rapl-mmio:0", "package-0", watts=80),
    ]
    return tree


def intel_multi_die(root: Path) -> Tree:
    """One socket whose two dies count for themselves, DRAM and all."""
    tree = Tree(root)
    for die in range(2):
        place = f"intel-rapl:{die}"
        tree.packages.append(tree.zone(place, f"package-0-die-{die}", watts=70 + 10 * die, start_uj=1_000 * die))
        tree.drams.append(tree.zone(f"{place}/{place}:0", "dram", watts=8 + die, range_uj=DRAM_RANGE_UJ))
    return tree


def amd_one_socket(root: Path) -> Tree:
    """A Zen: a package and its cores, no DRAM."""
    tree = Tree(root)
    tree.packages.append(tree.zone("intel-rapl:0", "package-0", watts=45, range_uj=AMD_RANGE_UJ))
    tree.others.append(tree.zone("intel-rapl:0/intel-rapl:0:0", "core", watts=5, range_uj=AMD_RANGE_UJ))
    return tree


def amd_two_sockets(root: Path) -> Tree:
    """An EPYC of two sockets."""
    tree = Tree(root)
    for socket in range(2):
        place = f"intel-rapl:{socket}"
        zone = tree.zone(place, f"package-{socket}", watts=150 + 20 * socket, start_uj=socket, range_uj=AMD_RANGE_UJ)
        tree.packages.append(zone)
        tree.others.append(tree.zone(f"{place}/{place}:0", "core", watts=9, range_uj=AMD_RANGE_UJ))
    return tree


def amd_listed_by_die(root: Path) -> Tree:
    """An EPYC under Linux 6.9 to 6.13: one counter of its socket, listed once a die."""
    tree = Tree(root)
    tree.packages.append(tree.zone("intel-rapl:0", "package-0-die-0", watts=150, range_uj=AMD_RANGE_UJ))
    for die in (1, 2):
        zone = tree.zone(f"intel-rapl:{die}", f"package-0-die-{die}", watts=150, range_uj=AMD_RANGE_UJ)
        (zone.path / "energy_uj").unlink()
        (zone.path / "energy_uj").hardlink_to(tree.packages[0].path / "energy_uj")
        tree.others.append(zone)
    return tree


def container_masked(root: Path) -> Tree:
    """Two sockets as a container sees them: links, and behind them an empty folder that a runtime mounted."""
    tree = intel_two_sockets(root)
    tree.close()
    tree.powercap.rename(root.with_name(f"{root.name}-masked"))
    tree.powercap.mkdir()
    return Tree(root)


TREES: dict[str, Callable[[Path], Tree]] = {
    "intel-one-socket": intel_one_socket,
    "intel-two-sockets": intel_two_sockets,
    "intel-multi-die": intel_multi_die,
    "amd-one-socket": amd_one_socket,
    "amd-two-sockets": amd_two_sockets,
    "amd-listed-by-die": amd_listed_by_die,
    "container-masked": container_masked,
}


def main() -> int:
    """Make a tree and count until the end of stdin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="root of the tree, made")
    parser.add_argument("--tree", choices=TREES, required=True)
    parser.add_argument("--step-ms", type=float, default=STEP_S * 1e3, help="between advances of the counters (20)")
    options = parser.parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    tree = TREES[options.tree](options.root)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    print(json.dumps({"sysfs": str(options.root), "tree": options.tree}), flush=True)

    def stopped(wait_s: float) -> bool:
        return bool(poll.poll(wait_s * 1e3)) and not os.read(sys.stdin.fileno(), 4096)

    tree.count(stopped, options.step_ms / 1e3)
    tree.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
