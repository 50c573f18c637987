"""Counters of the compute node at an epoch's edges: NIC bytes, CPU time, the link's own CPU time."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CellCounters"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CellCounters:
    """Reads the kernel's cumulative counters as this process's network namespace sees them."""

    def __init__(self, interface: str | None, link_pid: int | None) -> None:
        self._interface, self._link_pid = interface, link_pid

    def read(self) -> dict[str, float | int | None]:
        """Return rx_bytes and tx_bytes of the data interface, host CPU seconds and the link's CPU seconds.

        What does not exist is None: no data interface when the data is local, no link process under netem.
        """
        rx, tx = self._nic()
        busy, total = _host_cpu_s()
        return {
            "rx_bytes": rx,
            "tx_bytes": tx,
            "cpu_busy_s": busy,
            "cpu_total_s": total,
            "link_cpu_s": self._link_cpu_s(),
        }

    def _nic(self) -> tuple[int | None, int | None]:
        if self._interface is None:
            return None, None
        for line in Path("/proc/self/net/dev").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name.strip() == self._interface:
                fields = rest.split()
                return int(fields[0]), int(fields[8])
        return None, None

    def _link_cpu_s(self) -> float | None:
        if self._link_pid is None:
            return None
        try:
            stat = Path(f"/proc/{self._link_pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _host_cpu_s() -> tuple[float, float]:
    # user nice system idle iowait irq softirq steal (proc(5)); guest time is inside user.
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    total = sum(fields)
    idle = fields[3] + fields[4]
    return (total - idle) / _TICKS_PER_S, total / _TICKS_PER_S
