"""Counters of the compute node at an epoch's edges: NIC and disk bytes, CPU time of host, cell and link."""

from __future__ import annotations

import os

from harness.procfs import cpu_s, disk_bytes, family, host_cpu_s, nic_bytes

__all__ = ["CellCounters"]


class CellCounters:
    """Reads the kernel's cumulative counters as this process and its network namespace see them."""

    def __init__(self, interface: str | None, link_pid: int | None) -> None:
        self._interface, self._link_pid = interface, link_pid

    def read(self) -> dict[str, float | int | None]:
        """Return rx_bytes and tx_bytes of the data interface, CPU seconds of the host (busy, total), of the link, and
        of this process with its workers, and bytes read from and written to the host's disks.

        What does not exist is None: no data interface when the data is local, no link process under netem.
        """
        rx, tx = nic_bytes(self._interface) or (None, None)
        read, written = disk_bytes() or (None, None)
        busy, total = host_cpu_s()
        return {
            "rx_bytes": rx,
            "tx_bytes": tx,
            "cpu_busy_s": busy,
            "cpu_total_s": total,
            "link_cpu_s": self._link_cpu_s(),
            "cell_cpu_s": cpu_s(family(os.getpid())),
            "disk_read_bytes": read,
            "disk_written_bytes": written,
        }

    def _link_cpu_s(self) -> float | None:
        if self._link_pid is None or not family(self._link_pid):
            return None
        return cpu_s([self._link_pid])
