"""A loader with a fault in each epoch, which the test names; what others have to do for it, the test does meanwhile."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from harness.workloads import emulated
from loaders.base import Batch, LoaderStats, Samples
from loaders.pipeline.callables import AnyTransform
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import LoaderOptions, takes_options

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
SHIFTED_TICKS = 100
HELD_US = 40_000
"""More than twice the time of a step."""
SET_UP_S = 1.0
IDLE, STEAL = 4, 8
"""Columns of /proc/stat."""
WORK_S = 0.1
"""CPU seconds, of which a quota of a quarter of a processor lets a part pass."""


@contextmanager
def keep_lock(kept: bool) -> Iterator[None]:
    """Have this thread keep the interpreter's lock wherever a step waits for its end: the host wakes up late."""
    libc, code = ctypes.PyDLL(None), emulated._sleep_until.__code__

    def keep(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            libc.usleep(HELD_US)

    sys.setprofile(keep if kept else None)
    try:
        yield
    finally:
        sys.setprofile(None)


def _compute(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


class FaultyLoader(FileLoader):
    """Asks the test's socket for the faults of the cell's epochs, and for each fault that the test has to cause."""

    @takes_options(LoaderOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, socket: str, **keywords: Any) -> None:
        super().__init__(samples, LoaderOptions(**keywords))
        # Work before the clock, of which the first epoch's row is to warn.
        ends = time.process_time() + SET_UP_S
        while time.process_time() < ends:
            pass
        self._test = Client(socket)
        self._faults: list[str] = self._ask("faults")

    def _ask(self, what: str) -> list[str]:
        self._test.send(what)
        answer: list[str] | str = self._test.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"{what}: {answer}")
        return answer

    def _batches(self, epoch: int) -> Iterator[Batch]:
        with keep_lock(self._faults[epoch - 1] == "keeps the lock"):
            yield from self._made(epoch)

    def _made(self, epoch: int) -> Iterator[Batch]:
        self._coming = self._faults[epoch] if epoch < len(self._faults) else ""
        fault, n, size = self._faults[epoch - 1], len(self), self._options.batch_size
        order = self._share.order(epoch - 1 if fault == "replays" else epoch)
        if fault == "loses":
            order = order[:-1]
        elif fault == "repeats":
            order = np.where(order == 5, 6, order)
        elif fault == "invents":
            order = np.where(order == 5, n, order)
        for start in range(0, len(order), size):
            ids = order[start : start + size]
            if fault not in ("reads nothing", "nothing to read", "keeps the lock"):
                for sample in ids[ids < n].tolist():
                    self._samples.read(sample)
            nbytes = self._samples.encoded_bytes(ids[ids < n])
            nbytes += fault == "miscounts"
            labels = torch.from_numpy(self._samples.labels[ids % n])
            if fault == "decodes nothing":
                labels = torch.zeros_like(labels)
            # What a TimedPipeline makes of a file: its length in MB.
            data = torch.from_numpy(self._samples.sizes[ids % n] / 1e6).to(torch.float32)[:, None]
            yield Batch(ids, 0 * data if fault == "zeros" else data, labels, nbytes)
            if not start:
                self._ask(fault)
                if fault == "throttled":
                    _compute(WORK_S)
        if fault in ("steal", "loses time"):
            self._shift(STEAL if fault == "steal" else IDLE)

    def _shift(self, column: int) -> None:
        """Show this thread a /proc/stat in which the processors were stolen, or idle, for a while longer."""
        libc = ctypes.CDLL(None, use_errno=True)
        lines = []
        with Path("/proc/stat").open() as stat:
            for line in stat:
                fields = line.split()
                if fields[0].startswith("cpu"):
                    fields[column] = str(int(fields[column]) + SHIFTED_TICKS)
                lines.append(" ".join(fields) + "\n")
        with tempfile.NamedTemporaryFile("w") as file:
            file.writelines(lines)
            file.flush()
            for failed in (
                libc.unshare(CLONE_NEWNS),
                libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
                libc.mount(file.name.encode(), b"/proc/stat", None, MS_BIND, None),
            ):
                if failed:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._stole = libc

    _stole: ctypes.CDLL | None = None
    _coming = ""

    def stats(self) -> LoaderStats:
        """Return the counts; the cell asks after an epoch's counters have been read, and before those of the next."""
        if self._coming == "reads ahead":
            for sample in range(len(self)):
                self._samples.read(sample)
        if self._stole is not None:
            self._stole.umount2(b"/proc/stat", 0)
            self._stole = None
        return super().stats()

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self._test.close()
