"""How many bytes came over each connection of a loader, as JSON lines with UTC times."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import IO, Final

from joulefeed.closing import Closing
from loaders.errors import LoaderConfigError

WINDOW_S: Final = 0.1
"""Bytes of a connection that arrive within this time are counted together, so that a row costs no line."""


class ArrivalLog(Closing):
    """Notes the bytes that arrive over each connection; threads may share it.

    A line is `{"t_ns", "event": "arrived", "epoch", "connection", "bytes", "rank"}`, where the bytes arrived in the
    `WINDOW_S` before `t_ns`. `rank` is left out for a loader without ranks.
    """

    def __init__(self, path: Path | str, *, rank: int | None = None) -> None:
        """Write to `path`, after what is there; raises LoaderConfigError when that cannot be done."""
        try:
            self._file: IO[str] = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by close
        except OSError as error:
            raise LoaderConfigError(f"events cannot be written to {path}: {error.strerror}") from error
        self._rank = "" if rank is None else f', "rank": {rank}'
        self._lock = threading.Lock()
        self._counted: dict[tuple[int, int], int] = defaultdict(int)
        """Bytes by epoch and connection."""
        self._window = 0

    def count(self, epoch: int, connection: int, nbytes: int) -> None:
        """Note bytes that arrive now."""
        window = time.time_ns() // int(WINDOW_S * 1e9)
        with self._lock:
            if window != self._window:
                self._write()
                self._window = window
            self._counted[epoch, connection] += nbytes

    def close(self) -> None:
        """Write the bytes counted so far and close the file; may be called twice."""
        with self._lock:
            if not self._file.closed:
                self._write()
                self._file.close()

    def _write(self) -> None:
        if self._file.closed:
            return
        t_ns = (self._window + 1) * int(WINDOW_S * 1e9)
        for (epoch, connection), nbytes in self._counted.items():
            self._file.write(
                f'{{"t_ns": {t_ns}, "event": "arrived", "epoch": {epoch}, "connection": {connection}, '
                f'"bytes": {nbytes}{self._rank}}}\n'
            )
        self._counted.clear()
