"""An estimate of CPU energy from its load, for hosts without a sensor; labelled, never a measurement."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.reading import ESTIMATE, START
from energymon.sensors.base import FileSensor, Raw, SensorChannel, SensorPoint

TDP_W_PER_CPU: Final = 5.2
"""Watts per logical CPU: the EMLIO paper's Intel Xeon Gold 6126, 125 W over 24 threads (Intel ARK)."""
IDLE_FRACTION: Final = 0.12
"""Idle power over TDP (Teads Engineering, "Estimating AWS EC2 Instances Power Consumption", 2021)."""


class EstimateSensor(FileSensor):
    """Power = TDP · (idle + (1 - idle) · load), the load taken from the busy time in /proc/stat.

    Busy time is cumulative, so a missed tick loses nothing. Its step is 10 ms per CPU. Time stolen by a
    hypervisor is not counted as busy: it heats another tenant's account.
    """

    name = "estimate"
    channels = (SensorChannel("cpu", "cpu", ESTIMATE),)
    size = 256

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
        self.fd = os.open(stat, os.O_RDONLY | os.O_CLOEXEC)
        self._first: tuple[int, float] | None = None

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
        if len(line) < 9 or line[0] != b"cpu":
            raise ValueError(f"starts with {b' '.join(line)[:40]!r}, expected 'cpu' and eight counts")
        user, nice, system, _idle, _iowait, irq, softirq, _steal = map(int, line[1:9])
        return (user + nice + system + irq + softirq) / self._hertz

    def describe(self) -> dict[str, Any]:
        """Return the formula's constants and where they are from."""
        return {
            "sensor": self.name,
            "source": ESTIMATE,
            "tdp_w": self._tdp_w,
            "tdp_from": f"{TDP_W_PER_CPU} W per logical CPU" if self._tdp_is_default else "--cpu-tdp-w",
            "idle_fraction": self._idle_fraction,
            "logical_cpus": self._cpus,
            "channels": [{**self.channels[0]._asdict(), "path": str(self._path)}],
        }
