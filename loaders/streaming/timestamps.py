"""When batches were sent and received and epochs began and ended, as JSON lines with UTC times, on either side."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Literal, TypeAlias

from joulefeed.closing import Closing
from loaders.errors import LoaderConfigError

EventName: TypeAlias = Literal["batch_sent", "batch_received", "epoch_start", "epoch_end"]

_BUFFERED_LINES = 1024
"""Lines that are written at once, so that a batch costs no system call."""
_EPOCHS = 16
"""Epochs whose records are counted at a time."""


class TimestampLogger(Closing):
    """Records events with the UTC time in ns; threads may share it.

    A line is `{"t_ns", "event", "epoch", "batch", "bytes"}` and the name of this process, `daemon` or
    `rank`; fields that an event does not have are left out. Lines are written at the end of an epoch, on `flush` and on
    `close`.
    """

    def __init__(self, path: Path | str, *, daemon: str | None = None, rank: int | None = None) -> None:
        """Write to `path`, after what is there; raises LoaderConfigError when that cannot be done."""
        try:
            self._file: IO[str] = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by close
        except OSError as error:
            raise LoaderConfigError(f"events cannot be written to {path}: {error.strerror}") from error
        named = {"daemon": daemon, "rank": rank}
        self._who = "".join(f', "{name}": {json.dumps(value)}' for name, value in named.items() if value is not None)
        self._noted: deque[tuple[int, EventName, int, int | None, int | None]] = deque()
        self._lock = threading.Lock()

    def log(self, event: EventName, *, epoch: int, batch: int | None = None, nbytes: int | None = None) -> None:
        """Record an event that happens now."""
        self._noted.append((time.time_ns(), event, epoch, batch, nbytes))
        if event == "epoch_end" or len(self._noted) >= _BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        """Write the events noted so far."""
        with self._lock:
            if self._noted and not self._file.closed:
                lines = [self._line(*self._noted.popleft()) for _ in range(len(self._noted))]
                self._file.write("".join(lines))
                self._file.flush()

    def close(self) -> None:
        """Write the noted events and close the file; may be called twice."""
        self.flush()
        with self._lock:
            self._file.close()

    def _line(self, t_ns: int, event: EventName, epoch: int, batch: int | None, nbytes: int | None) -> str:
        at = "" if batch is None else f', "batch": {batch}'
        size = "" if nbytes is None else f', "bytes": {nbytes}'
        return f'{{"t_ns": {t_ns}, "event": "{event}", "epoch": {epoch}{at}{size}{self._who}}}\n'


class EpochMarks:
    """Records on the sending side when an epoch begins and when all of it has been sent.

    A daemon does not know epochs: one starts with its first request, and ends when as many records have been sent as
    there are, or on close.
    """

    def __init__(self, log: TimestampLogger, samples: int) -> None:
        self._log, self._samples = log, samples
        self._sent: dict[int, int] = {}

    def sent(self, epoch: int, batch: int, records: int, nbytes: int) -> None:
        """Record a batch, or part of one, that is sent now."""
        if epoch not in self._sent:
            if len(self._sent) == _EPOCHS:
                self._end(next(iter(self._sent)))
            self._sent[epoch] = 0
            self._log.log("epoch_start", epoch=epoch)
        self._log.log("batch_sent", epoch=epoch, batch=batch, nbytes=nbytes)
        self._sent[epoch] += records
        if self._sent[epoch] >= self._samples:
            self._end(epoch)

    def close(self) -> None:
        """Record the end of every open epoch."""
        for epoch in list(self._sent):
            self._end(epoch)

    def _end(self, epoch: int) -> None:
        del self._sent[epoch]
        self._log.log("epoch_end", epoch=epoch)
