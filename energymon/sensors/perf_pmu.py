"""What sysfs says of the kernel's PMU for energy: its events, their units, and the CPU to count each socket on."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from energymon.reading import Domain
from energymon.sensors.domains import RaplDomain

# Cores and gpu lie inside package, and psys holds package and DRAM: none of them may be added to these.
_EVENTS: Final[Mapping[str, Domain]] = {"energy-pkg": "cpu", "energy-ram": "dram"}
_CONFIG: Final = re.compile(r"event=(0x[0-9a-fA-F]+|\d+)")


@dataclass(frozen=True, slots=True)
class Event:
    """One domain of the PMU."""

    domain: Domain
    config: int
    unit_j: float
    """Joules of one count."""


@dataclass(frozen=True, slots=True)
class Pmu:
    """What the PMU's folder says."""

    type: int
    """What perf_event_open knows the PMU by."""
    events: tuple[Event, ...]
    cpus: Mapping[str, int]
    """Socket or die by name, and the CPU that its events are opened on."""

    @property
    def domains(self) -> list[RaplDomain]:
        """Every event of every socket."""
        return [(device, event.domain) for device in self.cpus for event in self.events]


def folder(sysfs: Path) -> Path:
    """Return where the PMU is described."""
    return sysfs / "bus" / "event_source" / "devices" / "power"


def read_pmu(sysfs: Path) -> Pmu:
    """Read the PMU's folder. Raises FileNotFoundError when there is none, ValueError for what it should not hold."""
    power = folder(sysfs)
    pmu_type = int((power / "type").read_text())
    events = [
        _event(power / "events" / name, domain)
        for name, domain in _EVENTS.items()
        if (power / "events" / name).exists()
    ]
    if not events:
        raise FileNotFoundError(errno.ENOENT, "no event energy-pkg", str(power))
    return Pmu(pmu_type, tuple(events), _sockets(sysfs, _cpu_list((power / "cpumask").read_text())))


def _event(path: Path, domain: Domain) -> Event:
    text = path.read_text().strip()
    match = _CONFIG.fullmatch(text)
    unit = path.with_name(f"{path.name}.unit").read_text().strip()
    if match is None or unit != "Joules":
        raise ValueError(f"{path.name} holds {text!r} in {unit!r}, expected event=NUMBER in Joules")
    unit_j = float(path.with_name(f"{path.name}.scale").read_text())
    if not 0 < unit_j < 1:
        raise ValueError(f"{path.name}.scale holds {unit_j}, expected joules a count, below 1")
    return Event(domain, int(match[1], 0), unit_j)


def _cpu_list(text: str) -> list[int]:
    """Return the CPUs of a list such as "0,28-29"."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _sockets(sysfs: Path, cpus: list[int]) -> dict[str, int]:
    """Name each CPU's socket as powercap does: with its die where a socket has several that count."""
    places: dict[int, tuple[int, int]] = {}
    for cpu in cpus:
        topology = sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package = int((topology / "physical_package_id").read_text())
        try:
            die = int((topology / "die_id").read_text())
        except FileNotFoundError:
            # Kernels before 5.2 know no dies.
            die = 0
        places[cpu] = package, die
    packages = [package for package, _ in places.values()]
    several = len(set(packages)) < len(packages)
    found = {
        f"package-{package}-die-{die}" if several else f"package-{package}": cpu
        for cpu, (package, die) in places.items()
    }
    if not found:
        raise ValueError("cpumask is empty, expected a CPU of every socket")
    return found
