"""Counters of the compute node at an epoch's edges: NIC and disk bytes, CPU time of host, run, cell and link."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from harness.system.heat import Heat
from harness.system.host_state import HostState
from harness.system.procfs import (
    HostCpu,
    KernelThreads,
    Strangers,
    cache_drops,
    cpu_s,
    cpu_split,
    family,
    nic_bytes,
    own_cpu,
    read_bytes,
    wait_s,
)

_NO_PIDS: Final[Mapping[str, Sequence[int]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the kernel has counted until one moment, as an event stores it. None is not there or not counted."""

    rx_bytes: int | None
    """Received by the data interface, as are the bytes sent; None for local data."""
    tx_bytes: int | None
    host: HostCpu
    """Of the processors that this process may use. An event has its seconds as cpu_busy_s and so on, and `cpus`."""
    link_cpu_s: float | None
    """Of the delay line; None where the kernel makes the link."""
    cell_cpu_s: float
    """Of this process with its workers."""
    cell_user_s: float
    """The same in user mode, and below in the kernel."""
    cell_system_s: float
    cpu_at_s: float
    """When the processors were read, monotonic."""
    run_cpu_s: float
    """Of all processes of the run on this host."""
    kernel_cpu_s: float
    """Of the kernel's own threads."""
    run_wait_s: float | None
    """For how long threads of the run waited for a CPU."""
    cell_read_bytes: int | None
    """What this process and its workers had read from disks."""
    cache_drops: int | None
    """How often anybody dropped this machine's page cache."""
    state: HostState
    """An event has its values by their own names."""
    strangers: Sequence[tuple[str, int, float]]
    """The busiest processes that are not of the run: name, process id, and CPU seconds since they were last read."""
    parts: Mapping[str, tuple[float | None, int | None]]
    """CPU seconds, and bytes read from disks, of the processes that serve the cell, by what they do; of CPU seconds
    None once one of them is gone. An event has them as NAME_cpu_s and NAME_read_bytes."""

    def to_event(self) -> dict[str, Any]:
        """Return the values of an event."""
        apart = ("host", "state", "parts")
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        own |= asdict(self.state)
        own |= {name if name == "cpus" else f"cpu_{name}": value for name, value in asdict(self.host).items()}
        for name, (used_s, nbytes) in self.parts.items():
            own |= {f"{name}_cpu_s": used_s, f"{name}_read_bytes": nbytes}
        return own


class CellCounters:
    """Reads the kernel's cumulative counters as this process and its network namespace see them.

    Of the data network's interface, None for local data; of the link's process, None where the kernel does the work; of
    the process that started all others of the run, by default this one; of `pids`, which serve the cell, by what they
    do; and of the devices that `heat` reads, by default none.
    """

    def __init__(
        self,
        interface: str | None,
        link_pid: int | None,
        run_pid: int | None = None,
        pids: Mapping[str, Sequence[int]] = _NO_PIDS,
        heat: Heat | None = None,
    ) -> None:
        self._interface, self._link_pid, self._pids, self._heat = interface, link_pid, pids, heat
        self._run_pid = os.getpid() if run_pid is None else run_pid
        self._kernel = KernelThreads()
        self._strangers = Strangers()

    def read(self) -> dict[str, Any]:
        """Return the values of a Counters, for an event."""
        # Boards idle soon after a step has ended.
        boards = [] if self._heat is None else self._heat.read_boards()
        rx, tx = nic_bytes(self._interface) or (None, None)
        at_s, host, run = time.monotonic(), own_cpu(), family(self._run_pid)
        user_s, system_s = cpu_split(family(os.getpid()))
        serving = [*run, *chain(*self._pids.values())]
        return Counters(
            rx_bytes=rx,
            tx_bytes=tx,
            host=host,
            link_cpu_s=None if self._link_pid is None else self._cpu_s([self._link_pid]),
            cell_cpu_s=user_s + system_s,
            cell_user_s=user_s,
            cell_system_s=system_s,
            cpu_at_s=at_s,
            run_cpu_s=cpu_s(run),
            kernel_cpu_s=self._kernel.cpu_s(),
            run_wait_s=wait_s(run),
            cell_read_bytes=read_bytes(family(os.getpid())),
            cache_drops=cache_drops(),
            state=HostState.read(serving, boards if self._heat is None else boards + self._heat.read_packages()),
            strangers=self._strangers.look(set(serving)),
            parts={
                name: (self._cpu_s(pids), read_bytes(chain(*map(family, pids)))) for name, pids in self._pids.items()
            },
        ).to_event()

    @staticmethod
    def _cpu_s(pids: Sequence[int]) -> float | None:
        families = [family(pid) for pid in pids]
        return cpu_s(chain(*families)) if all(families) else None
