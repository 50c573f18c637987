"""CPU package and DRAM energy from the kernel's perf events (RAPL on Intel and AMD): 64 bits, no wrap."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import CounterError
from energymon.reading import LAG_S
from energymon.sensors.base import Channel, Column, Discovery, Missing, Point, RawCounter, counted_column
from energymon.sensors.counter import Counter
from energymon.sensors.domains import (
    MAX_DOMAIN_W,
    REPEATED,
    SETTLE_S,
    RaplDomain,
    lags,
    repeated,
    still,
    still_remedy,
    unread,
)
from energymon.sensors.open_files import CLOSED, OpenFiles
from energymon.sensors.perf_pmu import Event, Pmu, folder, read_pmu
from energymon.sensors.reference import Reference
from energymon.sensors.updates import Age
from energymon.ticker.ticker import Answers, Operation

__all__ = ["PerfSensor", "domains", "open_perf"]

_NAME: Final = "perf"
_SOURCE: Final = "rapl-perf"
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")

# perf_event_open(2), linux/perf_event.h.
_SYSCALLS: Final[Mapping[str, int]] = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_ATTR: Final = struct.Struct("=IIQQQQQIIQ")
"""perf_event_attr: type, size, config, period, sample_type, read_format, flags, wakeup, bp_type, bp_addr."""
_FORMAT_GROUP: Final = 8
_FLAG_FD_CLOEXEC: Final = 8
_WORD: Final = 8

_DENIED: Final = (errno.EACCES, errno.EPERM)
_ABSENT: Final = (
    "virtual machines rarely have it; on bare metal load the module rapl (CONFIG_PERF_EVENTS_INTEL_RAPL), which"
    " serves AMD since Zen too"
)
_REPORT: Final = "report it with the kernel's version"


class _Group:
    """The events of one socket or die, which one read returns together."""

    __slots__ = (
        "_pmu_type",
        "ages",
        "channels",
        "counters",
        "cpu",
        "device",
        "events",
        "fd",
        "others",
        "references",
        "words",
    )

    def __init__(self, pmu_type: int, device: str, cpu: int, events: list[Event]) -> None:
        self._pmu_type = pmu_type
        self.device = device
        self.cpu = cpu
        self.events = events
        self.channels = [Channel(device, event.domain, _SOURCE) for event in events]
        self.counters = [
            Counter(unit_j=event.unit_j, wrap=None, max_w=MAX_DOMAIN_W, lag_s=LAG_S[_SOURCE]) for event in events
        ]
        self.ages = [Age(LAG_S[_SOURCE]) for _ in events]
        self.words = struct.Struct(f"={1 + len(events)}Q")
        self.fd = CLOSED
        self.others: list[int] = []
        self.references: list[Reference | None] = [None] * len(events)
        self.open()

    def refer(self, zones: Mapping[RaplDomain, Path]) -> None:
        """Take the zones of powercap that count what the events count, as far as they can be read."""
        for i, event in enumerate(self.events):
            if (zone := zones.get((self.device, event.domain))) is not None:
                with contextlib.suppress(OSError, ValueError):
                    self.references[i] = Reference(zone)

    def begun(self, i: int, value: int) -> RawCounter | None:
        """Return the counter behind an event that showed `value`, for a series that begins with it."""
        reference, event = self.references[i], self.events[i]
        return None if reference is None else reference.begun(partial(self.value, event), value, event.unit_j)

    def learn(self, lags_s: Mapping[RaplDomain, float]) -> None:
        """Take how old the values may be that the events show."""
        for i, event in enumerate(self.events):
            if (lag_s := lags_s.get((self.device, event.domain))) is not None:
                self.ages[i] = Age(lag_s)
                self.counters[i].allow_lag(lag_s)

    def open(self) -> None:
        self.close()
        try:
            for event in self.events:
                fd = _perf_event_open(self._pmu_type, event.config, self.cpu, self.fd)
                if self.fd == CLOSED:
                    self.fd = fd
                else:
                    self.others.append(fd)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        while self.others:
            os.close(self.others.pop())
        if self.fd != CLOSED:
            os.close(self.fd)
            self.fd = CLOSED

    def shown(self) -> dict[RaplDomain, bytes]:
        """Return what each event shows, b"" where it cannot be read."""
        try:
            data = os.read(self.fd, self.words.size)
        except OSError:
            data = b""
        return {
            (self.device, event.domain): data[_WORD * (1 + i) : _WORD * (2 + i)] for i, event in enumerate(self.events)
        }

    def value(self, event: Event) -> int:
        """Return what one event shows, 0 if it cannot be read."""
        return int.from_bytes(self.shown()[self.device, event.domain], sys.byteorder)


def _perf_event_open(pmu_type: int, config: int, cpu: int, group_fd: int) -> int:
    """Count an event of all processes on one CPU; a group_fd of -1 leads a group. Raises OSError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of perf_event_open on {platform.machine()} is not known here")
    attr = ctypes.create_string_buffer(_ATTR.pack(pmu_type, _ATTR.size, config, 0, 0, _FORMAT_GROUP, 0, 0, 0, 0))
    long = ctypes.c_long
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    fd = syscall(long(number), attr, long(-1), long(cpu), long(group_fd), long(_FLAG_FD_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(fd)


class PerfSensor:
    """Package and DRAM of every socket, one system call a socket."""

    name = _NAME

    def __init__(self, groups: list[_Group], confirmed_by: str | None) -> None:
        self._groups = groups
        self._held = OpenFiles(groups, os.read, max(group.words.size for group in groups))
        self.channels = tuple(channel for group in groups for channel in group.channels)
        self.sample = self._held.read
        self._confirmed_by = confirmed_by

    def operations(self) -> list[Operation] | None:
        """Return a read a socket."""
        if not self._held.whole:
            return None
        # The first word is the number of the others.
        return [Operation(group.words.size, fd=group.fd, form=f"8x{len(group.events)}Q") for group in self._groups]

    def decode_many(self, answers: Sequence[Answers], offset_ns: int) -> list[Column] | None:
        """Decode several ticks whose events all counted on."""
        counters = [counter for group in self._groups for counter in group.counters]
        marks = [counter.mark() for counter in counters]
        counted: list[tuple[Channel, Answers, list[float], Age]] = []
        for group, answer in zip(self._groups, answers, strict=True):
            whole = set(answer.status) == {group.words.size}
            for i, counter in enumerate(group.counters):
                joules = counter.advance(answer.values[i], answer.after_ns, answer.before_ns) if whole else None
                if joules is None:
                    for other, mark in zip(counters, marks, strict=True):
                        other.back_to(mark)
                    return None
                counted.append((group.channels[i], answer, joules, group.ages[i]))
        return [counted_column(*column, offset_ns) for column in counted]

    def decode(self, raw: Any, offset_ns: int) -> list[Point]:
        """Return a point of each event; those of a socket share their time."""
        points: list[Point] = []
        before_ns: int = raw[0]
        at = 1
        for group in self._groups:
            data, after_ns = raw[at], raw[at + 1]
            at += 2
            begun_ns, before_ns = before_ns, after_ns
            now_ns = (begun_ns + after_ns) // 2
            t_ns = now_ns + offset_ns
            if type(data) is not bytes or len(data) != group.words.size:
                if type(data) is bytes:
                    self._held.distrust(at // 2 - 1)
                    why = f"a read returned {len(data)} bytes, expected {group.words.size}"
                else:
                    why = str(data.strerror)
                points += [Point(channel, t_ns, None, problem=_told(group, why)) for channel in group.channels]
                continue
            values = group.words.unpack(data)
            for i, channel in enumerate(group.channels):
                try:
                    joules, flags = group.counters[i].update(values[i + 1], after_ns, begun_ns)
                except CounterError as error:
                    points.append(Point(channel, t_ns, None, problem=_told(group, str(error))))
                else:
                    if flags:
                        group.ages[i].restart()
                    early_ns = now_ns - group.ages[i].since_ns(joules, begun_ns, after_ns)
                    shown = group.begun(i, values[i + 1]) if flags else None
                    points.append(Point(channel, t_ns, joules, flags, "", early_ns, after_ns - now_ns, shown))
        return points

    def describe(self) -> dict[str, object]:
        """Return each channel's CPU, event and unit."""
        return {
            "sensor": self.name,
            "source": _SOURCE,
            "confirmed_by": self._confirmed_by,
            "channels": [
                {
                    "device": group.device,
                    "domain": event.domain,
                    "source": _SOURCE,
                    "lag_s": age.lag_ns / NS,
                    "cpu": group.cpu,
                    "event": event.config,
                    "unit_j": event.unit_j,
                }
                for group in self._groups
                for event, age in zip(group.events, group.ages, strict=True)
            ],
        }

    def notes(self) -> list[str]:
        """Return nothing: its points tell all."""
        return []

    def close(self) -> None:
        """Close the descriptors."""
        self._held.close()


def _told(group: _Group, why: str) -> str:
    return f"perf events of {group.device} on CPU {group.cpu}: {why}"


def domains(sysfs: Path) -> list[RaplDomain]:
    """Return the packages and DRAMs that the PMU below `sysfs` names; whether they can be read is another matter."""
    try:
        return read_pmu(sysfs).domains
    except (OSError, ValueError):
        return []


def open_perf(
    sysfs: Path,
    only: Collection[RaplDomain] | None = None,
    settle_s: float = SETTLE_S,
    confirmed_by: str | None = None,
    paranoid: Path = _PARANOID,
    zones: Mapping[RaplDomain, Path] = MappingProxyType({}),
) -> Discovery:
    """Open the events of the PMU "power" below `sysfs`, all or those of the domains in `only`.

    Those that cannot be opened, do not move within `settle_s`, or repeat another one are named in `missing`.
    `confirmed_by` names the interface that lists the same domains, and `zones` are powercap's, whose counters go on
    when this process ends.
    """
    try:
        pmu = read_pmu(sysfs)
    except FileNotFoundError:
        return Discovery((), (Missing(_NAME, f"{folder(sysfs)} is no PMU for energy", _ABSENT),))
    except (OSError, ValueError) as error:
        return Discovery((), (Missing(_NAME, f"{folder(sysfs)}: {error}", _REPORT, (("packages", "cpu"),)),))
    wanted = set(pmu.domains if only is None else only)
    missing: list[Missing] = []
    groups = _open_groups(pmu, wanted, missing, paranoid)
    resting = still(lambda: {k: v for group in groups for k, v in group.shown().items()}, settle_s)
    for domain in sorted(resting):
        parts = unread(domain, wanted - resting)
        missing.append(Missing(_NAME, f"{domain[1]} of {domain[0]} does not move", still_remedy(domain), parts))
        wanted.discard(domain)
    readers = {(group.device, event.domain): partial(group.value, event) for group in groups for event in group.events}
    for domain, first in repeated(readers, settle_s).items():
        missing.append(Missing(_NAME, f"{domain[1]} of {domain[0]} repeats {first[0]}", REPEATED))
        wanted.discard(domain)
    if any((group.device, event.domain) not in wanted for group in groups for event in group.events):
        for group in groups:
            group.close()
        groups = _open_groups(pmu, wanted, missing, paranoid)
    shown = {(group.device, event.domain): partial(group.value, event) for group in groups for event in group.events}
    lags_s = lags(shown, settle_s)
    for group in groups:
        group.learn(lags_s)
        group.refer(zones)
    return Discovery((PerfSensor(groups, confirmed_by),) if groups else (), tuple(missing))


def _open_groups(pmu: Pmu, wanted: set[RaplDomain], missing: list[Missing], paranoid: Path) -> list[_Group]:
    """Open what is wanted of each socket; name once in `missing` what fails for the same reason."""
    groups: list[_Group] = []
    for device, cpu in pmu.cpus.items():
        events = [event for event in pmu.events if (device, event.domain) in wanted]
        if not events:
            continue
        try:
            groups.append(_Group(pmu.type, device, cpu, events))
        except OSError as error:
            if error.errno in _DENIED:
                opened = {group.device for group in groups}
                parts = tuple(sorted(domain for domain in wanted if domain[0] not in opened))
                missing.append(_denied(error, paranoid, parts))
                break
            reason = f"perf_event_open for {device} on CPU {cpu}: {error.strerror}"
            missing.append(Missing(_NAME, reason, _REPORT, tuple((device, event.domain) for event in events)))
    return groups


def _denied(error: OSError, paranoid: Path, parts: tuple[RaplDomain, ...]) -> Missing:
    try:
        level = paranoid.read_text().strip()
    except OSError:
        level = "unknown"
    reason = f"perf_event_open: {error.strerror} (kernel.perf_event_paranoid is {level}, 0 or less is needed)"
    if os.geteuid() == 0:
        remedy = (
            "root is refused by a container's seccomp filter or a lockdown: run the agent on the host,"
            " or give the container CAP_PERFMON"
        )
    else:
        remedy = (
            f"as root `setcap cap_perfmon=ep {Path(sys.executable).resolve()}`, or"
            " `sysctl kernel.perf_event_paranoid=0`; or run the agent as root"
        )
    return Missing(_NAME, reason, remedy, parts)
