"""What the kernel counts: of the host's CPU and disks, of a data interface, of a process and its descendants."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

_SECTOR_BYTES: Final = 512
"""Of /proc/diskstats, whatever the device's own (the kernel's admin-guide/iostats.rst)."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
"""A second in /proc/stat."""
_CPU_CLOCK: Final = 2
"""Of a process, whose id is in the other bits: clock_getcpuclockid(3), the kernel's posix-timers_types.h."""
_KTHREADD: Final = 2
"""Parent of all threads of the kernel."""
_SHOWN: Final = 5
_LEAST_S: Final = 0.05
_INTERPRETERS: Final = ("python", "node", "perl", "ruby", "sh", "bash", "dash", "zsh")
_NOT_DISKS: Final = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Devices that are memory, or lie on others and would be counted twice."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """What a host's processors, or some of them, did since it started, in seconds of all of them together."""

    cpus: int
    busy_s: float
    """Neither idle nor waiting for disks."""
    total_s: float
    idle_s: float
    """Idle, and waiting for disks."""
    irq_s: float
    """In interrupts, which serve which process they serve."""
    steal_s: float
    """Taken by the other guests of the machine that this one is a guest of."""

    def used_s(self, at_s: float) -> float:
        """Return the CPU seconds until an instant of the monotonic clock, from an unknown start; 0 where unknown.

        The kernel times idle processors. Which of them are busy it may only sample at its ticks.
        """
        return self.cpus * at_s - self.idle_s - self.steal_s if self.idle_s > 0 else 0.0


def own_cpu() -> HostCpu:
    """Return what the processors did that this process may run on, as `taskset` says; all zero where unknown."""
    allowed = os.sched_getaffinity(0)
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if re.match(r"cpu\d", line)]
    except OSError:
        return host_cpu()
    counted = [[int(field) / _TICKS for field in fields[1:9]] for fields in lines if int(fields[0][3:]) in allowed]
    user, nice, system, idle, iowait, irq, softirq, steal = map(sum, zip(*counted, strict=True))
    busy = user + nice + system + irq + softirq + steal
    return HostCpu(len(counted), busy, busy + idle + iowait, idle + iowait, irq + softirq, steal)


def host_cpu() -> HostCpu:
    """Return what the host's processors did; all zero where the kernel does not say."""
    times = psutil.cpu_times()
    # Guest time is inside user.
    idle = times.idle + times.iowait
    busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    return HostCpu(psutil.cpu_count() or 0, busy, busy + idle, idle, times.irq + times.softirq, times.steal)


def host_cpu_s() -> tuple[float, float]:
    """Return seconds that the host's processors were busy, and seconds in all, since it started."""
    host = host_cpu()
    return host.busy_s, host.total_s


def disk_bytes() -> tuple[int, int] | None:
    """Return bytes read from and written to the host's disks since it started; None where it shows none.

    psutil counts loop devices and stacked devices too, at twice the cost.
    """
    try:
        return sum_disks(Path("/proc/diskstats").read_text(), {one.name for one in Path("/sys/block").iterdir()})
    except OSError:
        return None


def sum_disks(text: str, devices: Collection[str]) -> tuple[int, int] | None:
    """Return bytes read from and written to a host's disks, from its /proc/diskstats and the names in its /sys/block.

    None where it shows no disk.
    """
    read, written, disks = 0, 0, 0
    for fields in (line.split() for line in text.splitlines()):
        # A partition is not in /sys/block, and is counted in its disk.
        if fields[2].startswith(_NOT_DISKS) or fields[2].replace("/", "!") not in devices:
            continue
        disks += 1
        read += int(fields[5]) * _SECTOR_BYTES
        written += int(fields[9]) * _SECTOR_BYTES
    return (read, written) if disks else None


def nic_bytes(interface: str | None, pid: int | str = "self") -> tuple[int, int] | None:
    """Return bytes received and sent by an interface as a process's network namespace has it; None without one."""
    if interface is None:
        return None
    return interface_bytes(Path(f"/proc/{pid}/net/dev").read_text(), interface)


def interface_bytes(text: str, interface: str) -> tuple[int, int] | None:
    """Return bytes received and sent by an interface, from the text of a /proc/PID/net/dev; None without one."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == interface:
            fields = rest.split()
            return int(fields[0]), int(fields[8])
    return None


def family(pid: int) -> list[int]:
    """Return a process and its living descendants; empty when it is gone.

    psutil looks at every process of the host for that: 20 times the cost.
    """
    found, unseen = [], [pid]
    while unseen:
        parent = unseen.pop()
        with suppress(OSError):  # it ended meanwhile
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            found.append(parent)
            for task in tasks:
                with suppress(OSError):
                    unseen += map(int, (task / "children").read_text().split())
    return found


def cpu_split(pids: Iterable[int]) -> tuple[float, float]:
    """Return CPU seconds of some processes, in user mode and in the kernel for them.

    Those of their children that were waited for are included. Where a process ends meanwhile, its parent may have been
    read before it took over its time: the others are read again.
    """
    left = list(pids)
    while True:
        read = {pid: times for pid in left if (times := _cpu_times(pid))}
        if len(read) == len(left):
            user_s = sum(times.user + times.children_user for times in read.values())
            return user_s, sum(times.system + times.children_system for times in read.values())
        left = list(read)


def _cpu_times(pid: int) -> Any | None:
    """Return psutil's CPU times of a process, to the nanosecond; None where it has ended.

    /proc cuts each off to hundredths of a second, by half a second for 48 workers that have just started.
    """
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        cut_s = 0.0
        with suppress(OSError):
            cut_s = max(0.0, time.clock_gettime(~pid << 3 | _CPU_CLOCK) - times.user - times.system)
        return times._replace(user=times.user + cut_s / 2, system=times.system + cut_s / 2)
    return None


def cpu_s(pids: Iterable[int]) -> float:
    """Return CPU seconds of some processes and of their children that were waited for."""
    return sum(cpu_split(pids))


def read_bytes(pids: Iterable[int], *, also_written: bool = False) -> int | None:
    """Return bytes that some processes had read from disks, pages that they mapped included; None where unknown.

    Those of their children that were waited for are included. `also_written` adds the bytes that they wrote.
    """
    total, is_counted = 0, False
    for pid in pids:
        with suppress(OSError, KeyError, ValueError):
            found = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            total += int(found["read_bytes"]) + (int(found["write_bytes"]) if also_written else 0)
            is_counted = True
    return total if is_counted else None


def cache_drops() -> int | None:
    """Return how often this machine's page cache was dropped since it started; None where the kernel does not say."""
    return _vmstat("drop_pagecache")


def swapped_in_bytes() -> int | None:
    """Return the bytes of memory that this machine read from swap since it started; None where it does not say."""
    pages = _vmstat("pswpin")
    return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")


def _vmstat(name: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return None


class Strangers:
    """The processes that are not of a run, and what each used of the processors since it was last looked at."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], float] | None = None

    def look(self, ours: Collection[int]) -> list[tuple[str, int, float]]:
        """Return the busiest since the last look, at most `_SHOWN`: name, process id and CPU seconds; none at first.

        `ours` are the processes of the run. The kernel's threads are left out, and so is what has ended since: its time
        is in no process any more.
        """
        found = {(pid, start): (name, used_s) for pid, start, name, used_s in _list_processes() if pid not in ours}
        before = {key: used_s for key, (_, used_s) in found.items()} if self._seen is None else self._seen
        grown = [(name, pid, used_s - before.get((pid, at), 0.0)) for (pid, at), (name, used_s) in found.items()]
        self._seen = {key: used_s for key, (_, used_s) in found.items()}
        busiest = sorted(grown, key=lambda one: -one[2])[:_SHOWN]
        return [(_program(pid, name), pid, round(used_s, 2)) for name, pid, used_s in busiest if used_s >= _LEAST_S]


def _list_processes() -> Iterator[tuple[int, int, str, float]]:
    """Yield id, start time, name and CPU seconds of each process that is no thread of the kernel."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):
                # The name is in brackets and may have some itself (proc(5)).
                head, _, rest = Path(f"/proc/{entry.name}/stat").read_text(errors="replace").rpartition(")")
                fields = rest.split()
                if _KTHREADD not in (int(entry.name), int(fields[1])):
                    used_s = (int(fields[11]) + int(fields[12])) / _TICKS
                    yield int(entry.name), int(fields[19]), head.partition("(")[2], used_s


def _program(pid: int, name: str) -> str:
    """Return a process's name, of an interpreter with its script or module. Other arguments may be secrets."""
    if not name.startswith(_INTERPRETERS):
        return name
    with suppress(OSError):
        given = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[1:3]
        if len(given) == 2 and given[0] == "-m":
            return f"{name} -m {given[1]}"
        if given and given[0] and not given[0].startswith("-"):
            return f"{name} {Path(given[0]).name}"
    return name


class KernelThreads:
    """The kernel's own threads, of which some end at any moment and take their CPU time along."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._ended_s = 0.0

    def cpu_s(self) -> float:
        """Return their CPU seconds, with the last known ones of threads that have ended since the first call.

        0 where they cannot be seen, as in a container.
        """
        now = {pid: cpu_s((pid,)) for pid in kernel_threads()}
        # Less than before: the number is another thread's by now.
        self._ended_s += sum(used_s for pid, used_s in self._seen.items() if now.get(pid, 0.0) < used_s)
        self._seen = now
        return self._ended_s + sum(now.values())


def kernel_threads(name: str = "") -> tuple[int, ...]:
    """Return the ids of the kernel's own threads, all or of one name; none where they cannot be seen."""
    if _comm(_KTHREADD) != "kthreadd":
        return ()
    return tuple(pid for pid in family(_KTHREADD) if not name or _comm(pid) == name)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().removesuffix("\n")
    except OSError:
        return ""


def wait_s(pids: Iterable[int]) -> float | None:
    """Return for how long the living threads of some processes have waited for a CPU; None where it is not counted."""
    total_ns, is_counted = 0, False
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    # Time on the CPU and time on the run queue, ns (the kernel's scheduler/sched-stats.rst).
                    total_ns, is_counted = total_ns + int((task / "schedstat").read_text().split()[1]), True
    return total_ns / 1e9 if is_counted else None


def rss_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of some processes; what they share is counted for each."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def pss_bytes(pids: Iterable[int], templates: Iterable[int] = ()) -> int | None:
    """Return the memory of some processes, what they share counted once; None where the kernel does not say.

    `templates` are the processes that they were forked from, whose pages they share. A page that only a template has is
    left out where it was written: the process that needs it has a copy.

    The kernel walks all their pages: some 15 ms a GB (the kernel's filesystems/proc.rst, smaps_rollup).
    """
    found = [of["Pss"] for pid in pids if (of := _memory_map(pid))]
    if not found:
        return None
    return sum(found) + sum(of["Pss"] - of["Private_Dirty"] for pid in templates if (of := _memory_map(pid)))


def _memory_map(pid: int) -> dict[str, int]:
    """Return the sizes of a process's memory by kind, in bytes; empty where the kernel does not say."""
    with suppress(OSError):
        # The first line has addresses and no size.
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        return {name: int(size.split()[0]) << 10 for name, _, size in (line.partition(":") for line in lines)}
    return {}
