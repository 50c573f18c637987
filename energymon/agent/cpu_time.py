"""Joules of a process or a control group by its CPU time: attributed, never measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Final, NamedTuple

from energymon.analysis.attribution import NodeEnergy, divide_cpu_joules
from energymon.errors import OptionError, WindowError

_HERTZ: Final = os.sysconf("SC_CLK_TCK")
_PROCESSES: Final = {"process": (RUSAGE_SELF, RUSAGE_CHILDREN), "command": (RUSAGE_CHILDREN,)}


class CpuTime(NamedTuple):
    """CPU time until an instant, s, from an unknown start."""

    host_s: float
    used_s: float
    cpus: int
    """Processors that are online; with another number `host_s` has another start."""


@dataclass(frozen=True, slots=True)
class AttributedEnergy:
    """A share of the joules of a host's processors that is in proportion to CPU time; no measurement."""

    joules: float | None
    """None where the CPU's joules are unknown."""
    cpu_s: float
    """CPU time of the process or the group, s."""
    host_cpu_s: float
    """CPU time of all of the host's processors, s."""
    is_net: bool
    """Whether the joules beyond the idle baseline were divided, or all for lack of a baseline."""
    estimated: bool
    """Whether the CPU's joules themselves are an estimate."""

    def __str__(self) -> str:
        joules = "unknown" if self.joules is None else f"{self.joules:.3f} J"
        of = ("beyond idle" if self.is_net else "idle included") + (", of an estimate" if self.estimated else "")
        seconds = f"{self.cpu_s:.3f} of {self.host_cpu_s:.3f} CPU seconds"
        return f"attributed by CPU time, not measured: {joules} of the CPU's, {of} ({seconds})"


class CpuShare:
    """The share that a process, its children or a control group have of the CPU time from now on."""

    def __init__(self, owner: str | Path) -> None:
        """Begin; `owner` is as for `cpu_time`, which raises OptionError."""
        self._owner = owner
        self._begin = self._end = cpu_time(owner)
        self.unknown = "it has not ended"
        """Why there is no share; "" where there is."""

    def end(self) -> None:
        """End; a control group that has gone, and processors that came or went, leave the share unknown."""
        try:
            self._end = cpu_time(self._owner)
        except OptionError as error:
            self.unknown = str(error)
            return
        began, ended = self._begin.cpus, self._end.cpus
        self.unknown = "" if ended == began else f"{began} processors were online, and {ended} are"

    def of(self, energy: NodeEnergy) -> AttributedEnergy:
        """Return the share of the CPU's joules, beyond idle where that is known; raises WindowError for unknown."""
        if self.unknown:
            raise WindowError(f"the share by CPU time is unknown: {self.unknown}")
        cpu = next((one for one in energy.components if one.name == "cpu"), None)
        net = cpu is not None and cpu.net_j is not None
        host_s, used_s = self._end.host_s - self._begin.host_s, self._end.used_s - self._begin.used_s
        parts = divide_cpu_joules(energy, host_s, {"used": used_s}, net=net)
        return AttributedEnergy(parts["used"], used_s, host_s, net, cpu is not None and cpu.estimated)


def cpu_time(owner: str | Path) -> CpuTime:
    """Return the CPU time of the host and of an owner; raises OptionError.

    That is "process", this one with the children that it waited for, "command" for these children alone, or the folder
    of a control group (v2).
    """
    if owner in _PROCESSES:
        used = [getrusage(who) for who in _PROCESSES[str(owner)]]
        used_s = sum(one.ru_utime + one.ru_stime for one in used)
    else:
        file = Path(owner) / "cpu.stat"
        try:
            used_s = int(dict(line.split() for line in file.read_text().splitlines())["usage_usec"]) / 1e6
        except (OSError, ValueError, KeyError) as error:
            raise OptionError(f"{file}: {error!r}; expected the folder of a control group (v2)") from None
    whole, *each = (line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu"))
    # The kernel times idle processors; which of them are busy it may sample at its ticks alone.
    idle_s = sum(int(whole[field]) for field in (4, 5, 8)) / _HERTZ
    return CpuTime(len(each) * time.monotonic() - idle_s, used_s, len(each))
