"""How busy the machine's processors are."""

from __future__ import annotations

import os

__all__ = ["Processors"]

_IDLE = (3, 4)
"""Fields of /proc/stat's first line that count waiting: idle and iowait (proc_stat(5))."""


class Processors:
    """Their utilisation since it was last asked for."""

    def __init__(self) -> None:
        self._file = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._total, self._idle = self._read()

    def busy(self) -> float:
        """Return the share of the processors' time that was used, 0 to 1; 0 where no time has passed."""
        total, idle = self._read()
        passed, rested = total - self._total, idle - self._idle
        self._total, self._idle = total, idle
        return min(1.0, max(0.0, 1 - rested / passed)) if passed > 0 else 0.0

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> tuple[int, int]:
        fields = [int(each) for each in os.pread(self._file, 512, 0).split(b"\n", 1)[0].split()[1:9]]
        return sum(fields), sum(fields[at] for at in _IDLE)
