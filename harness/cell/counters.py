"""Counters of the compute node at an epoch's edges: NIC and disk bytes, CPU time of host, run, cell and link."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from harness.system.procfs import (
    KernelThreads,
    cache_drops,
    cpu_s,
    cpu_split,
    disk_bytes,
    family,
    nic_bytes,
    own_cpu,
    read_bytes,
    wait_s,
)

_NO_PIDS: Final[Mapping[str, Sequence[int]]] = MappingProxyType({})


class CellCounters:
    """Reads the kernel's cumulative counters as this process and its network namespace see them.

    Args:
        interface: the data network's; None for local data.
        link_pid: the link's process; None where the kernel does the work.
        run_pid: the process that started all others of the run; None for this one.
        pids: processes that serve the cell, by what they do.
    """

    def __init__(
        self,
        interface: str | None,
        link_pid: int | None,
        run_pid: int | None = None,
        pids: Mapping[str, Sequence[int]] = _NO_PIDS,
    ) -> None:
        self._interface, self._link_pid, self._pids = interface, link_pid, pids
        self._run_pid = os.getpid() if run_pid is None else run_pid
        self._kernel = KernelThreads()

    def read(self) -> dict[str, Any]:
        """Return rx_bytes and tx_bytes of the data interface, CPU seconds of the processors that this process may
        use (busy, total), of the link, and of this process with its workers (all, in user mode, in the kernel), and
        bytes read from and written to the host's disks. Then, to find out what others took: the time, s, with those
        processors and their seconds idle, in interrupts and stolen; CPU seconds of the whole run and of the kernel's
        threads; for how long threads of the run waited for a CPU. NAME_cpu_s is that of `pids` with their children, and
        None once one of them is gone. NAME_read_bytes is what they read from disks; that of `cell` is this process with
        its workers. Last, how often anybody dropped this machine's page cache.

        What does not exist is None: no data interface when the data is local, no link process under netem.
        """
        rx, tx = nic_bytes(self._interface) or (None, None)
        read, written = disk_bytes() or (None, None)
        at_s, host, run = time.monotonic(), own_cpu(), family(self._run_pid)
        user_s, system_s = cpu_split(family(os.getpid()))
        return {
            "rx_bytes": rx,
            "tx_bytes": tx,
            "cpu_busy_s": host.busy_s,
            "cpu_total_s": host.total_s,
            "link_cpu_s": self._link_cpu_s(),
            "cell_cpu_s": user_s + system_s,
            "cell_user_s": user_s,
            "cell_system_s": system_s,
            "disk_read_bytes": read,
            "disk_written_bytes": written,
            "cpu_at_s": at_s,
            "cpus": host.cpus,
            "cpu_idle_s": host.idle_s,
            "cpu_irq_s": host.irq_s,
            "cpu_steal_s": host.steal_s,
            "run_cpu_s": cpu_s(run),
            "kernel_cpu_s": self._kernel.cpu_s(),
            "run_wait_s": wait_s(run),
            **{f"{name}_cpu_s": self._cpu_s(pids) for name, pids in self._pids.items()},
            "cell_read_bytes": read_bytes(family(os.getpid())),
            **{f"{name}_read_bytes": read_bytes(chain(*map(family, pids))) for name, pids in self._pids.items()},
            "cache_drops": cache_drops(),
        }

    def _link_cpu_s(self) -> float | None:
        return None if self._link_pid is None else self._cpu_s([self._link_pid])

    @staticmethod
    def _cpu_s(pids: Sequence[int]) -> float | None:
        families = [family(pid) for pid in pids]
        return cpu_s(chain(*families)) if all(families) else None
