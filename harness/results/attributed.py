"""Attributes the joules of an epoch: to the parts of a run by their CPU time, and to waiting for batches; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

import energymon
from energymon import Baseline, Energy, NodeEnergy, Reading
from harness.cell.events import CellEvent
from harness.cell.messages import AcceleratorRecord
from harness.results.cells import CellRecord
from harness.results.edges import measure_growth, sum_over_ranks

PARTS: Final = ("loader", "daemon", "mount", "link", "monitor", "other")
"""CPU joules are divided among these: the cell with its workers, the daemons, the servers of the mount, the delay line,
the energy agent, and the rest: the harness, the kernel and other programs."""
Parts: TypeAlias = dict[str, float | None]
"""Joules by part; None is unknown."""
_COUNTERS: Final = {"daemon": "daemon_cpu_s", "mount": "mount_cpu_s", "link": "link_cpu_s", "monitor": "monitor_cpu_s"}
EMULATED: Final = "compute"
"""Node of the energy of an emulated board."""


def leave_busy_baselines_out(cell: CellRecord, max_idle_util: float) -> CellRecord:
    """Return a cell without the baselines during which a host's processors were busier than `max_idle_util`, 0 to 1."""

    def is_busy(util: float | None) -> bool:
        return util is not None and util > max_idle_util

    energy = replace(cell.energy, idle=()) if is_busy(cell.energy.idle_cpu_util) else cell.energy
    return replace(
        cell, energy=energy, hosts=[replace(one, idle=()) if is_busy(one.idle_cpu_util) else one for one in cell.hosts]
    )


def make_emulated_idle(accelerator: AcceleratorRecord, devices: Iterable[str]) -> list[Baseline]:
    """Return the published idle power of emulated boards."""
    if accelerator.idle_w is None:
        return []
    return [Baseline(EMULATED, one, "gpu", "estimate", 0, 0, accelerator.idle_w, None) for one in devices]


def has_baseline(cell: CellRecord) -> bool:
    """Return whether the idle power of any of a cell's hosts was measured."""
    return bool(cell.energy.idle) or any(host.idle for host in cell.hosts)


def divide_cpu_joules(energy: NodeEnergy, busy_s: float, used_s: Mapping[str, float | None], *, net: bool) -> Parts:
    """Divide a host's CPU joules among `PARTS` by their CPU time, as `energymon.divide_cpu_joules` does.

    The rule `cpu_parts` shows where the parts have more CPU time than the host.
    """
    named = {name: value for name, value in used_s.items() if name in PARTS}
    return {**dict.fromkeys(PARTS), **energymon.divide_cpu_joules(energy, busy_s, named, net=net)}


def count_cpu_s(
    events: Iterable[CellEvent], start: CellEvent, end: CellEvent
) -> tuple[float, Mapping[str, float | None]]:
    """Return the CPU seconds of one machine in an epoch, in all and by part. `events` are from all of its ranks.

    The whole is the time in which the processors were not idle. The kernel measures this time as exactly as the time of
    each process. Its counter of busy time may only be sampled at ticks, and then misses work between them.
    """
    steal_s = end.get("cpu_steal_s", 0.0) - start.get("cpu_steal_s", 0.0)
    whole_s = end["cpu_busy_s"] - start["cpu_busy_s"] - steal_s
    if "cpu_at_s" in start and end.get("cpu_idle_s", 0.0) > 0:
        idle_s = end["cpu_idle_s"] - start["cpu_idle_s"]
        whole_s = end["cpus"] * (end["cpu_at_s"] - start["cpu_at_s"]) - idle_s - steal_s
    used = {name: measure_growth(start, end, counter) for name, counter in _COUNTERS.items()}
    return whole_s, {"loader": sum_over_ranks(events, start["epoch"], "cell_cpu_s"), **used}


def compute_cpu_excess(whole_s: float, used_s: Mapping[str, float | None]) -> tuple[float, float]:
    """Return the CPU seconds of a host's parts, and by how many they exceed the CPU seconds of its processors."""
    parts_s = sum(value for name, value in used_s.items() if value is not None and name in PARTS)
    return parts_s, parts_s - whole_s


def add_parts(hosts: Sequence[Parts]) -> Parts:
    """Return the sum over hosts; all None where the parts of a host are unknown."""
    if any(parts["other"] is None for parts in hosts):
        return dict.fromkeys(PARTS)
    known = {name: [value for parts in hosts if (value := parts[name]) is not None] for name in PARTS}
    return {name: sum(values) if values else None for name, values in known.items()}


def measure_stalled_joules(
    energy: NodeEnergy,
    readings: Sequence[Reading],
    start_ns: int,
    wait_s: npt.NDArray[np.float64],
    step_s: npt.NDArray[np.float64],
) -> float | None:
    """Return the joules of a host's boards while the step waited for batches; None where they are not measured.

    Args:
        energy: the host's energy in the epoch.
        readings: the host's readings.
        start_ns: when the epoch began, ns of the readings' clock.
        wait_s: how long each step waited, s.
        step_s: how long each step took, s.
    """
    boards = [one for one in energy.best if one.domain == "gpu"]
    whole = next((one for one in energy.components if one.name == "gpu"), None)
    if not boards or whole is None or whole.joules is None:
        return None
    ends_ns = start_ns + np.round(1e9 * np.cumsum(wait_s + step_s)).astype(np.int64)
    begins_ns = np.concatenate(([start_ns], ends_ns[:-1]))
    stops_ns = begins_ns + np.round(1e9 * wait_s).astype(np.int64)
    total_j = 0.0
    for board in boards:
        of_board = [one for one in readings if _is_of(one, board)]
        of_board.sort(key=lambda one: (one.t_ns, one.tick_ns))
        times, joules = np.array([one.t_ns for one in of_board]), np.array([one.joules for one in of_board])
        total_j += float((np.interp(stops_ns, times, joules) - np.interp(begins_ns, times, joules)).sum())
    return total_j


def _is_of(reading: Reading, board: Energy) -> bool:
    names = ("node", "device", "domain", "source")
    return all(getattr(reading, name) == getattr(board, name) for name in names)
