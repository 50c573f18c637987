"""What may disturb an epoch on its host: CPU quotas, a lack of memory, disks that others use, heat and power limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from harness.system.control_groups import pressure_s, throttling
from harness.system.heat import DeviceState
from harness.system.procfs import disk_bytes, read_bytes, swapped_in_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What a host's kernel and devices say at one moment. None is not there or not counted."""

    throttled: int | None
    """How often CPU quotas stopped a control group of the run; None where no group counts it."""
    throttled_s: float | None
    """For how long, of all processors together."""
    memory_wait_s: float | None
    """For how long some task waited for memory, as is the time for disks; None where the kernel does not count it."""
    disk_wait_s: float | None
    swapped_in_bytes: int | None
    """What this machine read from swap."""
    run_disk_bytes: int | None
    """What the processes of the run on this host, and those that serve it, had read from disks and written."""
    disk_read_bytes: int | None
    """Of the host's disks, as are the bytes written."""
    disk_written_bytes: int | None
    devices: Sequence[DeviceState]
    """The boards and the processors, as far as they say something."""

    @classmethod
    def read(cls, pids: Collection[int], devices: Sequence[DeviceState] = ()) -> Self:
        """Return the state of this host; `pids` are the processes of the run on it, and those that serve it."""
        throttled, throttled_s = throttling(pids) or (None, None)
        read, written = disk_bytes() or (None, None)
        return cls(
            throttled=throttled,
            throttled_s=throttled_s,
            memory_wait_s=pressure_s("memory"),
            disk_wait_s=pressure_s("io"),
            swapped_in_bytes=swapped_in_bytes(),
            run_disk_bytes=read_bytes(set(pids), also_written=True),
            disk_read_bytes=read,
            disk_written_bytes=written,
            devices=devices,
        )
