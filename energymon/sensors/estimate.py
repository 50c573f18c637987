"""An estimate of CPU energy from its load, for hosts without a sensor; labelled, never a measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from energymon.clock.monotonic import NS
from energymon.reading import ESTIMATE, START
from energymon.sensors.base import CLOSED, SensorChannel, SensorPoint

if TYPE_CHECKING:
    from energymon.ticker.ticker import Operation, Raw

TDP_W_PER_CPU: Final = 5.2
"""Watts per logical CPU: the EMLIO paper's Intel Xeon Gold 6126, 125 W over 24 threads (Intel ARK)."""
IDLE_FRACTION: Final = 0.12
"""Idle power over TDP (Teads Engineering, "Estimating AWS EC2 Instances Power Consumption", 2021)."""

_FIELDS: Final = 8
_IDLE: Final = 3
_IOWAIT: Final = 4
_STEAL: Final = 7
_LINE_BYTES: Final = 256


class EstimateSensor:
    """Power = TDP · (idle + (1 - idle) · load), the load taken from the busy time in /proc/stat.

    Busy time is cumulative, so a missed tick loses nothing. Its step is 10 ms per CPU. Time stolen by a
    hypervisor is not counted as busy: it heats another tenant's account.
    """

    name = "estimate"

    def __init__(
        self,
        *,
        tdp_w: float | None = None,
        idle_fraction: float = IDLE_FRACTION,
        stat: Path = Path("/proc/stat"),
        cpus: int | None = None,
    ) -> None:
        self._cpus = cpus or os.cpu_count() or 1
        self._tdp_w = TDP_W_PER_CPU * self._cpus if tdp_w is None else tdp_w
        self._tdp_is_default = tdp_w is None
        self._idle_fraction = idle_fraction
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._path = stat
        self._fd = os.open(stat, os.O_RDONLY | os.O_CLOEXEC)
        self._first: tuple[int, float] | None = None
        self.channels = (SensorChannel("cpu", "cpu", ESTIMATE),)

    def sample(self) -> Raw:
        """Read the line that sums up all CPUs."""
        now_ns = time.monotonic_ns()
        try:
            text: bytes | OSError = os.pread(self._fd, _LINE_BYTES, 0)
        except OSError as error:
            error.__traceback__ = None
            text = error
        return [now_ns, text, time.monotonic_ns()]

    def operations(self) -> list[Operation] | None:
        """Return the read."""
        from energymon.ticker.ticker import Operation

        return [Operation(_LINE_BYTES, fd=self._fd, seeks=True)] if self._fd != CLOSED else None

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Turn the busy time's growth since the first sample into joules."""
        now_ns, text, _ = raw
        t_ns = now_ns + offset_ns
        try:
            busy_s = self._busy_s(text)
        except (OSError, ValueError) as error:
            return [SensorPoint(self.channels[0], t_ns, None, problem=f"{self._path}: {error}")]
        if self._first is None:
            self._first = (now_ns, busy_s)
            return [SensorPoint(self.channels[0], t_ns, 0.0, START)]
        elapsed_s = (now_ns - self._first[0]) / NS
        load_s = (busy_s - self._first[1]) / self._cpus
        joules = self._tdp_w * (self._idle_fraction * elapsed_s + (1 - self._idle_fraction) * load_s)
        return [SensorPoint(self.channels[0], t_ns, joules)]

    def _busy_s(self, text: bytes | OSError) -> float:
        if isinstance(text, OSError):
            raise text
        line = text.partition(b"\n")[0].split()
        if len(line) <= _FIELDS or line[0] != b"cpu":
            raise ValueError(f"starts with {b' '.join(line)[:40]!r}, expected 'cpu' and eight counts")
        counts = [int(field) for field in line[1 : _FIELDS + 1]]
        return (sum(counts) - counts[_IDLE] - counts[_IOWAIT] - counts[_STEAL]) / self._hertz

    def describe(self) -> dict[str, object]:
        """Return the formula's constants and where they are from."""
        return {
            "sensor": self.name,
            "source": ESTIMATE,
            "tdp_w": self._tdp_w,
            "tdp_from": f"{TDP_W_PER_CPU} W per logical CPU" if self._tdp_is_default else "--cpu-tdp-w",
            "idle_fraction": self._idle_fraction,
            "logical_cpus": self._cpus,
            "channels": [{"device": "cpu", "domain": "cpu", "source": ESTIMATE, "path": str(self._path)}],
        }

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Do nothing: there is no counter."""

    def close(self) -> None:
        """Close /proc/stat."""
        if self._fd != CLOSED:
            os.close(self._fd)
            self._fd = CLOSED
