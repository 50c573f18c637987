"""The powercap counter beside one of perf's, which outlives the agent: perf counts from when it is opened."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from energymon.sensors.base import RawCounter
from energymon.sensors.domains import MAX_DOMAIN_W

_TRIES: Final = 8
"""The counter moves every millisecond; a reading of both takes some 20 µs."""
_COUNTS: Final = 2**32 - 1
_NJ: Final = 1e9
_WHOLE: Final = 0.01


class Reference:
    """A zone of powercap that counts what an event of perf counts: both read one register of 32 bits."""

    def __init__(self, zone: Path) -> None:
        """Take the zone's folder; raises OSError and ValueError for one that cannot be read."""
        self._path = zone / "energy_uj"
        self._wrap = int((zone / "max_energy_range_uj").read_text())
        # Powercap counts the register's steps in whole nJ (intel_rapl_common.c); perf counts them as the power of two
        # that they are. The range, which is the steps of the whole register, shows how many nJ are taken for one.
        step_nj = self._wrap * 1000 / _COUNTS
        if step_nj < 1 or abs(step_nj - round(step_nj)) > _WHOLE:
            raise ValueError(f"{zone}/max_energy_range_uj holds {self._wrap}, expected steps of whole nJ")
        true_nj = _NJ / 2 ** round(math.log2(_NJ / step_nj))
        self._unit_j = 1e-6 * true_nj / round(step_nj)
        self._shown()

    def started(self, count: Callable[[], int], value: int, unit_j: float) -> RawCounter | None:
        """Return what powercap showed when perf's counter showed `value`, units of `unit_j`; None when unknown.

        `count` returns what perf's counter shows now.
        """
        for _ in range(_TRIES):
            try:
                before, now, after = self._shown(), count(), self._shown()
            except (OSError, ValueError):
                return None
            if before == after and now >= value:
                raw = (before - round((now - value) * unit_j / self._unit_j)) % self._wrap
                return RawCounter(raw, self._unit_j, self._wrap, MAX_DOMAIN_W, str(self._path))
        return None

    def _shown(self) -> int:
        return int(self._path.read_text())
