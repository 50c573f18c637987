"""One epoch of a cell: a loader feeds a training step, between two readings of counters and sensors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from energymon import Asker
from harness.cell.counters import CellCounters
from harness.cell.events import EventLog, Moment
from harness.cell.ranks import Ranks
from harness.cell.template import templates
from harness.errors import CellError
from harness.system.procfs import family, pss_bytes
from loaders.base import Batch, Loader

if TYPE_CHECKING:
    from harness.cell.content import KeptSamples
    from harness.workloads.accelerator import Step


_PROGRESS_EVERY_NS = 250_000_000


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What one step of an epoch took."""

    wait_ns: int
    """Time the device waited for the batch: from the end of its step before, or from the epoch's start."""
    step_ns: int
    """Time the step took on the device."""
    nbytes: int
    ids: npt.NDArray[np.int64]
    work_s: npt.NDArray[np.float64] | None
    """Seconds of preprocessing of every sample; None where the engine does not report them."""
    sync_ns: int | None = None
    """Time of the step after its own computation, until the gradients of all ranks were there; None for one rank."""
    labels: Any = None
    """A copy of labels of shape (n,), on their device; None of other ones."""


def run_epoch(
    loader: Loader,
    step: Callable[[Batch], None],
    epoch: int,
    progress: Callable[[int, float], None] | None = None,
    steps: int | None = None,
    kept: KeptSamples | None = None,
) -> list[BatchRecord]:
    """Feed one epoch of the loader to the step and return a record a batch, in order.

    `steps` is how many the rank with most batches makes: this one takes part in those for which it has no batch. `kept`
    gets copies of the samples that it has chosen, before a step can change them.

    Raises CellError for a batch whose data are of more or fewer samples than it names, or for one batch too many.
    """
    records: list[BatchRecord] = []
    done, waited_ns, shown = 0, 0, time.monotonic_ns()
    free = time.monotonic_ns()
    for batch in loader.epoch(epoch):
        if kept is not None:
            kept.take(batch)
        began = time.monotonic_ns()
        if len(batch.data) != len(batch.ids):
            raise CellError(
                f"epoch {epoch}, batch {len(records)}: {type(loader).__name__} names {len(batch.ids)} samples and "
                f"brings data of {len(batch.data)}: expected one each"
            )
        if len(records) == steps:
            raise CellError(
                f"epoch {epoch}: {type(loader).__name__} brings more batches than the {steps} that the ranks agreed on "
                "by its length"
            )
        step(batch)
        finished = ended = time.monotonic_ns()
        if (span := getattr(step, "span_ns", None)) is not None:
            # The host may have been late at the end of the epoch before.
            began, ended = max(free, span[0]), span[1]
        sync_ns = getattr(step, "sync_ns", None)
        labels = _copy_labels(batch)
        records.append(BatchRecord(began - free, ended - began, batch.nbytes, batch.ids, batch.work_s, sync_ns, labels))
        waited_ns += began - free
        free = ended
        if progress is not None:
            done += len(batch.ids)
            if finished - shown > _PROGRESS_EVERY_NS:
                progress(done, waited_ns / 1e9)
                shown = finished
    for _ in range(len(records), steps or 0):
        cast("Step", step).idle()
    return records


def _copy_labels(batch: Batch) -> Any:
    """Return a copy of labels of shape (n,), for the loader may use their memory again; None of other ones.

    The copy of labels on a GPU stays there: to bring it here would wait for the step.
    """
    if np.shape(batch.labels) != (len(batch.ids),):
        return None
    return batch.labels.clone() if hasattr(batch.labels, "clone") else np.array(batch.labels)


def measured_epoch(
    loader: Loader,
    step: Callable[[Batch], None],
    epoch: int,
    log: EventLog,
    counters: CellCounters,
    progress: Callable[[int, float], None],
    at_edge: Callable[[], bool] = lambda: False,
    ranks: Ranks | None = None,
    kept: KeptSamples | None = None,
) -> list[BatchRecord]:
    """Run one epoch between its two events, which carry the counters at its edges.

    `at_edge` has the energy sensors read and returns whether they were. The two events have the instants of the
    duration. The end is the instant after the sensors were read, so that their reading bounds the same span; where
    nothing was read, it is the end of the last step. An epoch of several ranks begins when all are ready, and ends when
    the last one has made its last step; `own_ns` of the end is how long this rank took.

    Args:
        loader: yields the epoch's batches.
        step: trains on one.
        epoch: its number, from 1.
        log: gets the events.
        counters: are read at both edges.
        progress: gets the samples so far and the seconds that the step waited for them, a few times a second.
        at_edge: reads the energy sensors; default: nothing is read.
        ranks: those that train together; default: None, one process.
        kept: gets the samples that it has chosen; default: None, no sample is kept.
    """
    before = counters.read()
    if ranks is not None:
        ranks.wait()
    at_edge()
    began = Moment.now()
    log.add("epoch_start", at=began, synced=False, epoch=epoch, **before)
    records = run_epoch(loader, step, epoch, progress, None if ranks is None else ranks.steps, kept)
    ended = Moment.now()
    own: dict[str, Any] = {}
    if ranks is not None:
        own["own_ns"] = ended.mono_ns - began.mono_ns
        ranks.wait()
        ended = Moment.now()
    if at_edge():
        ended = Moment.now()
    duration_ns = ended.mono_ns - began.mono_ns
    log.add("epoch_end", at=ended, epoch=epoch, duration_ns=duration_ns, **own, **counters.read())
    # Dear, so after the epoch: workers that live on are still there, and the sampler seldom looks.
    log.add("memory", epoch=epoch, pss_bytes=pss_bytes(family(os.getpid()), templates()))
    return records


class EnergyReader:
    """Has the energy agent that writes `store` read its sensors, over one connection while the agent lives."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._agent: Asker | None = None

    def read(self) -> bool:
        """Have the sensors read now; returns whether they were."""
        was_connected = self._agent is not None
        # The agent may have been started again since, and hears another connection then.
        return self._asked() or (was_connected and self._asked())

    def _asked(self) -> bool:
        try:
            self._agent = self._agent or Asker(self._store)
        except OSError:
            # Nothing is measured here, or the agent is being started again: the epoch goes by the ticks.
            return False
        if self._agent.edge_ns() is not None:
            return True
        self.close()
        return False

    def close(self) -> None:
        """Hang up; may be called twice."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()


def save_batches(
    records: list[BatchRecord],
    epoch: int,
    path: Path,
    losses: Sequence[float] | None = None,
    *,
    keeps_labels: bool = False,
) -> None:
    """Write a line of JSON a batch: epoch, step, samples, bytes, wait_s, step_s, ids, labels, loss, work_s, sync_s.

    Labels are null unless `keeps_labels`; those that are no whole number a sample are an empty list. Not Parquet:
    pyarrow imports pandas to make a table, which would be memory and time of the cell. A loader of a user's own may
    bring NumPy's numbers, lists or tensors.
    """
    with path.open("w", encoding="utf-8") as file:
        for step, record in enumerate(records):
            row = {
                "epoch": epoch,
                "step": step,
                "samples": len(record.ids),
                "bytes": int(record.nbytes),
                "wait_s": record.wait_ns / 1e9,
                "step_s": record.step_ns / 1e9,
                "ids": np.asarray(record.ids).tolist(),
                "labels": _list_labels(record.labels) if keeps_labels else None,
                "loss": None if losses is None else losses[step],
                "work_s": None if record.work_s is None else np.asarray(record.work_s).tolist(),
                "sync_s": None if record.sync_ns is None else record.sync_ns / 1e9,
            }
            file.write(json.dumps(row) + "\n")


def _list_labels(labels: Any) -> list[int]:
    values = np.asarray(labels.cpu() if hasattr(labels, "cpu") else labels)
    return values.tolist() if np.issubdtype(values.dtype, np.integer) else []
