"""CPU package and DRAM energy from the kernel's perf events (RAPL on Intel and AMD): 64 bits, no wrap."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from energymon.reading import LAG_S, Domain
from energymon.sensors import powercap
from energymon.sensors.base import Discovery, Missing, Part, RawCounter, SensorPoint, line_of
from energymon.sensors.counter import Counter
from energymon.sensors.rapl_sensor import MAX_DOMAIN_W, SETTLE_S, RaplCounters, open_counting

_NAME: Final = "perf"
_SOURCE: Final = "rapl-perf"
_FOLDER: Final = "bus/event_source/devices/power"
"""Where sysfs describes the PMU."""

# perf_event_open(2), linux/perf_event.h.
_SYSCALLS: Final[Mapping[str, int]] = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_ATTR: Final = struct.Struct("=IIQQQQQIIQ")
"""perf_event_attr: type, size, config, period, sample_type, read_format, flags, wakeup, bp_type, bp_addr."""
_FORMAT_GROUP: Final = 8
_FLAG_FD_CLOEXEC: Final = 8

_ABSENT: Final = (
    "virtual machines rarely have it; on bare metal load the module rapl (CONFIG_PERF_EVENTS_INTEL_RAPL), which"
    " serves AMD since Zen too"
)
_REPORT: Final = "report it with the kernel's version"

# Cores and gpu lie inside package, and psys holds package and DRAM: none of them may be added to these.
_EVENTS: Final[Mapping[str, Domain]] = {"energy-pkg": "cpu", "energy-ram": "dram"}
_CONFIG: Final = re.compile(r"event=(0x[0-9a-fA-F]+|\d+)")


class PerfEvent(NamedTuple):
    """One domain of the PMU, and the joules of one count."""

    domain: Domain
    config: int
    unit_j: float


class Pmu(NamedTuple):
    """What the PMU's folder says."""

    type: int
    """What perf_event_open knows the PMU by."""
    events: list[PerfEvent]
    cpus: Mapping[str, int]
    """Socket or die by name, and the CPU that its events are opened on."""

    @property
    def domains(self) -> list[Part]:
        """Every event of every socket."""
        return [(device, event.domain) for device in self.cpus for event in self.events]


class Reference:
    """A zone of powercap that counts what an event of perf counts: both read one register of 32 bits."""

    def __init__(self, zone: Path) -> None:
        """Take the zone's folder; raises OSError and ValueError for one that cannot be read."""
        self._path = zone / "energy_uj"
        self._wrap = int((zone / "max_energy_range_uj").read_text())
        # Powercap counts the register's steps in whole nJ (intel_rapl_common.c); perf counts them as the power of two
        # that they are. The range, which is the steps of the whole register, shows how many nJ are taken for one.
        step_nj = self._wrap * 1000 / (2**32 - 1)
        if step_nj < 1 or abs(step_nj - round(step_nj)) > 0.01:
            raise ValueError(f"{zone}/max_energy_range_uj holds {self._wrap}, expected steps of whole nJ")
        true_nj = 1e9 / 2 ** round(math.log2(1e9 / step_nj))
        self._unit_j = 1e-6 * true_nj / round(step_nj)
        self._shown()

    def started(self, count: Callable[[], int | None], value: int, unit_j: float) -> RawCounter | None:
        """Return what powercap showed when perf's counter showed `value`, units of `unit_j`; None when unknown.

        `count` returns what perf's counter shows now, None where it cannot be read.
        """
        # The counter moves every millisecond; a reading of both takes some 20 µs.
        for _ in range(8):
            try:
                before, now, after = self._shown(), count(), self._shown()
            except (OSError, ValueError):
                return None
            if before == after and now is not None and now >= value:
                raw = (before - round((now - value) * unit_j / self._unit_j)) % self._wrap
                return RawCounter(raw, self._unit_j, self._wrap, MAX_DOMAIN_W, str(self._path))
        return None

    def _shown(self) -> int:
        return int(self._path.read_text())


class _PerfGroup(RaplCounters):
    """The events of one socket or die, which one read returns together."""

    seeks = False

    def __init__(
        self, pmu_type: int, device: str, cpu: int, events: Sequence[PerfEvent], zones: Mapping[Part, Path]
    ) -> None:
        """Open the events; `zones` are those of powercap that may count the same."""
        self.device, self._pmu_type, self._cpu, self._events = device, pmu_type, cpu, events
        # The first word is the number of the others.
        self._words = struct.Struct(f"={1 + len(events)}Q")
        counters: dict[Part, Counter] = {}
        self._references: dict[int, Reference] = {}
        for i, (domain, _, unit_j) in enumerate(events):
            counters[device, domain] = Counter(unit_j=unit_j, wrap=None, max_w=MAX_DOMAIN_W, lag_s=LAG_S[_SOURCE])
            with suppress(KeyError, OSError, ValueError):
                self._references[i] = Reference(zones[device, domain])
        super().__init__(_SOURCE, f"perf events of {device} on CPU {cpu}", self._words.size, counters)

    def open(self) -> None:
        """Open the events."""
        self.close()
        try:
            for event in self._events:
                self.fds = (*self.fds, _perf_event_open(self._pmu_type, event.config, self._cpu, self.fd))
        except OSError:
            self.close()
            raise

    def parse(self, data: bytes) -> Sequence[int]:
        """Return each event's value."""
        if len(data) != self.size:
            raise ValueError(f"a read returned {len(data)} bytes, expected {self.size}")
        return self._words.unpack(data)[1:]

    def started(self, i: int, point: SensorPoint) -> SensorPoint:
        """Return the point with powercap's counter behind an event; without one where that is not known."""
        shown, reference = point.counter, self._references.get(i)
        if shown is None or reference is None:
            return point._replace(counter=None)
        return point._replace(counter=reference.started(partial(self.value, i), shown.raw, shown.unit_j))

    def describe(self, i: int) -> dict[str, Any]:
        """Return the CPU, the event and its unit."""
        event = self._events[i]
        return {"cpu": self._cpu, "event": event.config, "unit_j": event.unit_j}


def _perf_event_open(pmu_type: int, config: int, cpu: int, group_fd: int) -> int:
    """Count an event of all processes on one CPU; a group_fd of -1 leads a group. Raises OSError."""
    number = _SYSCALLS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of perf_event_open on {os.uname().machine} is not known here")
    attr = ctypes.create_string_buffer(_ATTR.pack(pmu_type, _ATTR.size, config, 0, 0, _FORMAT_GROUP, 0, 0, 0, 0))
    long = ctypes.c_long
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    fd = syscall(long(number), attr, long(-1), long(cpu), long(group_fd), long(_FLAG_FD_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(fd)


def domains(sysfs: Path) -> list[Part]:
    """Return the packages and DRAMs that the PMU below `sysfs` names; whether they can be read is another matter."""
    try:
        return _read_pmu(sysfs).domains
    except (OSError, ValueError):
        return []


def open_perf(
    sysfs: Path, only: Collection[Part] | None = None, settle_s: float = SETTLE_S, confirmed_by: str | None = None
) -> Discovery:
    """Open the events of the PMU "power" below `sysfs`, all or those of the domains in `only`.

    Those that cannot be opened, do not move within `settle_s`, or repeat another one are named in `missing`.
    `confirmed_by` names the interface that lists the same domains.
    """
    try:
        pmu = _read_pmu(sysfs)
    except FileNotFoundError:
        return Discovery((), (Missing(_NAME, f"{sysfs / _FOLDER} is no PMU for energy", _ABSENT),))
    except (OSError, ValueError) as error:
        return Discovery((), (Missing(_NAME, f"{sysfs / _FOLDER}: {error}", _REPORT, (("packages", "cpu"),)),))
    # Those counters go on when this process ends.
    zones = powercap.domains(sysfs)
    wanted = pmu.domains if only is None else only
    return open_counting(_NAME, lambda some: _groups(pmu, some, zones), wanted, settle_s, confirmed_by)


def _groups(pmu: Pmu, wanted: Collection[Part], zones: Mapping[Part, Path]) -> tuple[list[_PerfGroup], list[Missing]]:
    """Open the wanted events of each socket; return them, and once what fails for the same reason."""
    groups: list[_PerfGroup] = []
    missing: list[Missing] = []
    for device, cpu in pmu.cpus.items():
        events = [event for event in pmu.events if (device, event.domain) in wanted]
        if not events:
            continue
        try:
            groups.append(_PerfGroup(pmu.type, device, cpu, events, zones))
        except PermissionError as error:
            opened = {group.device for group in groups}
            parts = tuple(sorted(domain for domain in wanted if domain[0] not in opened))
            missing.append(Missing(_NAME, *_denied(error), parts))
            break
        except OSError as error:
            reason = f"perf_event_open for {device} on CPU {cpu}: {error.strerror}"
            missing.append(Missing(_NAME, reason, _REPORT, tuple((device, event.domain) for event in events)))
    return groups, missing


def _denied(error: OSError) -> tuple[str, str]:
    """Return why the kernel refuses, and the remedy."""
    level = line_of(Path("/proc/sys/kernel/perf_event_paranoid")) or "unknown"
    reason = f"perf_event_open: {error.strerror} (kernel.perf_event_paranoid is {level}, 0 or less is needed)"
    if os.geteuid() == 0:
        return reason, (
            "root is refused by a container's seccomp filter or a lockdown: run the agent on the host,"
            " or give the container CAP_PERFMON"
        )
    return reason, (
        f"as root `setcap cap_perfmon=ep {Path(sys.executable).resolve()}`, or"
        " `sysctl kernel.perf_event_paranoid=0`; or run the agent as root"
    )


def _read_pmu(sysfs: Path) -> Pmu:
    """Read the PMU's folder. Raises FileNotFoundError when there is none, ValueError for what it should not hold."""
    power = sysfs / _FOLDER
    pmu_type = int((power / "type").read_text())
    paths = {power / "events" / name: domain for name, domain in _EVENTS.items()}
    events = [_event(path, domain) for path, domain in paths.items() if path.exists()]
    if not events:
        raise FileNotFoundError(errno.ENOENT, "no event energy-pkg", str(power))
    return Pmu(pmu_type, events, _sockets(sysfs, (power / "cpumask").read_text()))


def _event(path: Path, domain: Domain) -> PerfEvent:
    text = path.read_text().strip()
    match = _CONFIG.fullmatch(text)
    unit = path.with_name(f"{path.name}.unit").read_text().strip()
    if match is None or unit != "Joules":
        raise ValueError(f"{path.name} holds {text!r} in {unit!r}, expected event=NUMBER in Joules")
    unit_j = float(path.with_name(f"{path.name}.scale").read_text())
    if not 0 < unit_j < 1:
        raise ValueError(f"{path.name}.scale holds {unit_j}, expected joules a count, below 1")
    return PerfEvent(domain, int(match[1], 0), unit_j)


def _sockets(sysfs: Path, cpumask: str) -> dict[str, int]:
    """Name the socket of each CPU of a list such as "0,28-29" as powercap does, with its die where several count."""
    places: dict[int, tuple[int, int]] = {}
    for part in filter(None, cpumask.strip().split(",")):
        first, _, last = part.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            topology = sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
            package, die = int((topology / "physical_package_id").read_text()), 0
            with suppress(FileNotFoundError):  # kernels before 5.2 know no dies
                die = int((topology / "die_id").read_text())
            places[cpu] = package, die
    if not places:
        raise ValueError("cpumask is empty, expected a CPU of every socket")
    several = len({package for package, _ in places.values()}) < len(places)
    return {
        f"package-{package}-die-{die}" if several else f"package-{package}": cpu
        for cpu, (package, die) in places.items()
    }
