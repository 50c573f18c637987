"""What a cell uses over time, seen from outside: a thread of the harness that looks at it once in 250 ms."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from energymon.sensors.base import Missing
from energymon.sensors.nvml_library import load
from harness.system.procfs import cpu_s, disk_bytes, family, host_cpu_s, nic_bytes, pss_bytes, rss_bytes

INTERVAL_S: Final = 0.25
_PSS_SHARE: Final = 0.01
"""Of the time that reading PSS may take: the kernel walks every page, and holds the cell's memory map meanwhile."""


@dataclass(frozen=True, slots=True)
class Resources:
    """One row of resources.parquet; None is unknown, or not looked at in this row."""

    utc_ns: int
    cpu_util: float | None
    """Of the whole host since the row before, 0 to 1."""
    cell_cpu_s: float
    """CPU seconds of the cell and its workers since they started."""
    rss_bytes: int
    """Resident memory of the cell and its workers; what they share counts for each. Of the modules that they share
    with the process that they were forked from, what they have used."""
    pss_bytes: int | None
    """Of them and that process, with shared memory counted once; looked at as often as it costs 1 % of a core."""
    disk_read_bytes: int | None
    """Of the host's disks since they started, as are the bytes written."""
    disk_written_bytes: int | None
    rx_bytes: int | None
    """Of the data interface since it was made, as are the bytes sent; None for local data."""
    tx_bytes: int | None
    gpu_util: float | None
    """Share of NVML's last sample period in which a kernel ran on the cell's boards, 0 to 1; the mean of them."""
    gpu_mem_bytes: int | None
    """Used by any program, on the fullest of the cell's boards."""


SCHEMA: Final = pa.schema([(f.name, pa.float64() if "float" in str(f.type) else pa.int64()) for f in fields(Resources)])


class Boards:
    """The GPUs that the ranks of a cell train on, as NVML shows them."""

    def __init__(self, uuids: Sequence[str], library: Path | None = None) -> None:
        """Find the boards; where NVML or one of them is not there, as on another host, everything stays unknown."""
        self._nvml: Any = load(library)
        self._handles: Sequence[Any] = ()
        if isinstance(self._nvml, Missing):
            self._nvml = None
            return
        try:
            self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except self._nvml.NVMLError:
            self.close()

    def read(self) -> tuple[float | None, int | None]:
        """Return the mean utilisation, 0 to 1, and the most bytes in use; None for what a board does not report."""
        percent, used = self._ask("nvmlDeviceGetUtilizationRates", "gpu"), self._ask("nvmlDeviceGetMemoryInfo", "used")
        return sum(percent) / len(percent) / 100 if percent else None, max(used, default=None)

    def close(self) -> None:
        """Let the library go; may be called twice."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, ()

    def _ask(self, function: str, field: str) -> list[int]:
        """Return a value of each board; none where one does not report it."""
        try:
            return [getattr(getattr(self._nvml, function)(handle), field) for handle in self._handles]
        except self._nvml.NVMLError:
            return []


class ResourceSampler:
    """Collects a row once in `INTERVAL_S` from when it is started until it is left; then writes the file."""

    def __init__(self, pids: Sequence[int], interface: str | None, path: Path, templates: Collection[int] = ()) -> None:
        """Watch the cell of the processes `pids`, the first of which has the `interface` of its data, if it has one.

        They were forked from `templates`, with which they share the memory of what they import.
        """
        self._pids, self._interface, self._path, self._templates = pids, interface, path, templates
        self._boards: Boards | None = None
        self._rows: list[Resources] = []
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._cpu_s = 0.0
        self._pss_due_ns = 0
        self._host = host_cpu_s()

    def __enter__(self) -> Self:
        return self

    def start(self, gpus: Sequence[str]) -> None:
        """Start to look. `gpus` are the UUIDs of the boards that the cell trains on. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(gpus,), name="resources", daemon=True)
            self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in self._rows], schema=SCHEMA), self._path)
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def cost(self) -> dict[str, float]:
        """What looking has cost so far: rows, and the thread's CPU seconds."""
        return {"rows": len(self._rows), "interval_s": INTERVAL_S, "cpu_s": self._cpu_s}

    def _run(self, gpus: Sequence[str]) -> None:
        try:
            self._boards = Boards(gpus) if gpus else None
            due = time.monotonic()
            while not self._left.is_set():
                if (row := self._look()) is None:
                    return
                self._rows.append(row)
                self._cpu_s = time.thread_time()
                # A row that comes late does not make the following ones hurry.
                due = max(due + INTERVAL_S, time.monotonic())
                self._left.wait(due - time.monotonic())
        except BaseException as error:  # noqa: BLE001 - raised where the context is left
            self._failure = error
        finally:
            if self._boards is not None:
                self._boards.close()

    def _look(self) -> Resources | None:
        """Return a row; None once the cell has ended."""
        pids = [pid for one in self._pids for pid in family(one)]
        try:
            rx, tx = nic_bytes(self._interface, self._pids[0]) or (None, None)
        except OSError:
            return None
        before, self._host = self._host, host_cpu_s()
        busy, total = self._host[0] - before[0], self._host[1] - before[1]
        read, written = disk_bytes() or (None, None)
        gpu_util, gpu_mem = self._boards.read() if self._boards is not None else (None, None)
        row = Resources(
            utc_ns=time.time_ns(),
            cpu_util=min(1.0, max(0.0, busy / total)) if total > 0 else None,
            cell_cpu_s=cpu_s(pids),
            rss_bytes=rss_bytes(pids),
            pss_bytes=self._pss(pids),
            disk_read_bytes=read,
            disk_written_bytes=written,
            rx_bytes=rx,
            tx_bytes=tx,
            gpu_util=gpu_util,
            gpu_mem_bytes=gpu_mem,
        )
        return row if pids else None

    def _pss(self, pids: list[int]) -> int | None:
        began = time.monotonic_ns()
        if began < self._pss_due_ns:
            return None
        found = pss_bytes(pids, self._templates)
        took = time.monotonic_ns() - began
        self._pss_due_ns = began + round(took / _PSS_SHARE)
        return found
