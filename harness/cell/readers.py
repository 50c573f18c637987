"""Measures, in a cell's process, how quickly a loader brings samples when it reads so many files at once.

The driver sends `{"readers": n}` for every number, and `{"readers": 0}` at the end (harness.run.cells.try_readers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.cell.loader import count_samples, make_loader
from harness.cell.messages import CellSpec
from loaders.base import Batch, Loader

if TYPE_CHECKING:
    from harness.workloads import Workload
    from harness.workloads.accelerator import Step

_BATCH: Final = 4
"""Samples of a batch, so that every reader brings a few batches in a short time."""
_AHEAD: Final = 2
"""Rounds that a loader may read ahead, as PyTorch's prefetch_factor has it."""
_PIECE_NS: Final = 700_000_000
"""Least time that is measured."""


def measure_readers(spec: CellSpec, workload: Workload, step: Step, readers: int, epoch: int) -> float | None:
    """Return samples/s of a piece of an epoch with so many readers; None where the epoch is too short for it.

    `epoch` chooses the order of the samples.
    """
    tried = replace(spec, loader=spec.loader.read_with(readers))
    batch_size = min(_BATCH, workload.batch_size)
    batches = count_samples(spec) // batch_size
    with make_loader(tried, workload, step.device, batch_size=batch_size) as loader:
        return measure_rate(loader, step, readers, epoch, batches)


def measure_rate(loader: Loader, step: Callable[[Batch], None], readers: int, epoch: int, batches: int) -> float | None:
    """Return samples/s between the ends of two rounds of an epoch of so many batches, in which each reader brings one.

    Workers start within the first round, and have nothing more to read ahead in the last ones. None where there are no
    other three: batches that were read ahead come in a burst, and may be most of two.
    """
    done, first, last = 0, (0, 0), (0, 0)
    rounds = batches // readers - _AHEAD
    for number, batch in enumerate(loader.epoch(epoch) if rounds > 2 else (), 1):
        step(batch)
        done += len(batch.ids)
        if number % readers:
            continue
        last = (time.monotonic_ns(), done)
        first = last if number == readers else first
        if number == rounds * readers or last[0] - first[0] >= _PIECE_NS:
            break
    return 1e9 * (last[1] - first[1]) / (last[0] - first[0]) if last > first else None
