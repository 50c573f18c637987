"""One cell, in a process of its own on the compute node: a loader feeds a training step, epoch by epoch.

The harness talks to it in JSON lines. In, on stdin: first the modules to import, then the cell's spec, then
`{"go": true}` before every epoch. Out, on the process's first stdout: one state a line. EOF on stdin means that
the harness is gone, and ends the process.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from energymon import Asker
from harness.cell.counters import CellCounters
from harness.cell.events import EventLog, Instant
from harness.cell.messages import AcceleratorRecord, CellSpec
from harness.cell.skipped import EVENT as SKIPPED
from harness.config.targets import instantiate, takes
from harness.errors import CellError
from harness.system.procfs import family, pss_bytes
from loaders.base import Batch, Loader, Samples

if TYPE_CHECKING:
    from harness.workloads import Workload

__all__ = ["BatchRecord", "EnergyReader", "main", "measured_epoch", "run_epoch", "save_batches"]

_PROGRESS_EVERY_NS = 250_000_000


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What one step of an epoch took."""

    wait_ns: int
    """Time the step waited for its batch."""
    step_ns: int
    """Time the step took."""
    nbytes: int
    ids: npt.NDArray[np.int64]
    work_s: npt.NDArray[np.float64] | None
    """Seconds of preprocessing of every sample; None where the engine does not report them."""


def run_epoch(
    loader: Loader,
    step: Callable[[Batch], None],
    epoch: int,
    progress: Callable[[int], None] | None = None,
) -> list[BatchRecord]:
    """Feed one epoch of the loader to the step and return a record a batch, in order.

    Raises CellError for a batch whose data are of more or fewer samples than it names.
    """
    records: list[BatchRecord] = []
    done, shown = 0, time.monotonic_ns()
    asked = time.monotonic_ns()
    for batch in loader.epoch(epoch):
        got = time.monotonic_ns()
        if len(batch.data) != len(batch.ids):
            raise CellError(
                f"epoch {epoch}, batch {len(records)}: {type(loader).__name__} names {len(batch.ids)} samples and "
                f"brings data of {len(batch.data)}: expected one each"
            )
        step(batch)
        finished = time.monotonic_ns()
        records.append(BatchRecord(got - asked, finished - got, batch.nbytes, batch.ids, batch.work_s))
        asked = finished
        if progress is not None:
            done += len(batch.ids)
            if finished - shown > _PROGRESS_EVERY_NS:
                progress(done)
                shown = finished
    return records


def measured_epoch(
    loader: Loader,
    step: Callable[[Batch], None],
    epoch: int,
    log: EventLog,
    counters: CellCounters,
    progress: Callable[[int], None],
    at_edge: Callable[[], bool] = lambda: False,
) -> list[BatchRecord]:
    """Run one epoch between its two events, which carry the counters at its edges.

    `at_edge` has the energy sensors read and returns whether they were. The instants of the two events are those of the
    duration. The end is the instant after the sensors were read, so that their reading bounds the same span; where
    nothing was read, it is the end of the last step.
    """
    before = counters.read()
    at_edge()
    began = Instant.now()
    log.add("epoch_start", at=began, synced=False, epoch=epoch, **before)
    records = run_epoch(loader, step, epoch, progress)
    ended = Instant.now()
    if at_edge():
        ended = Instant.now()
    duration_ns = ended.mono_ns - began.mono_ns
    log.add("epoch_end", at=ended, epoch=epoch, duration_ns=duration_ns, **counters.read())
    # Dear, so after the epoch: workers that live on are still there, and the sampler seldom looks.
    log.add("memory", epoch=epoch, pss_bytes=pss_bytes(family(os.getpid())))
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


class _Driver:
    """The driver's end of the conversation, as the cell sees it."""

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        self._reader, self._writer = reader, writer

    def send(self, state: str, **values: object) -> None:
        """Send a CellState."""
        self._writer.write(json.dumps({"state": state, **values}) + "\n")
        self._writer.flush()

    def receive(self) -> str:
        """Return the next line. Raises CellError when the driver is gone."""
        line = self._reader.readline()
        if not line:
            raise CellError("the harness is gone")
        return line


def main() -> int:
    """Run the cell that stdin describes; 0 when it is whole, 3 when it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The harness asks for the stacks of a cell that makes no progress; they go to its log.
    faulthandler.register(signal.SIGUSR1)
    # What libraries print must not mix with the conversation.
    driver = _Driver(sys.stdin, os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    try:
        for module in json.loads(driver.receive())["import"]:
            importlib.import_module(module)
        driver.send("imported")
        _run(CellSpec.from_json(driver.receive()), driver)
    except Exception as error:  # noqa: BLE001 - reported whole, and the cell fails
        import traceback

        traceback.print_exc()
        driver.send("failed", kind=type(error).__name__, message=str(error) or repr(error))
        return CellError.exit_status
    return 0


def _run(spec: CellSpec, driver: _Driver) -> None:
    from harness.workloads.accelerator import make_step

    workload = instantiate(spec.workload.target, spec.workload.params)
    step = make_step(workload, spec.accelerator.model_dump(), spec.seed)
    counters = CellCounters(spec.interface, spec.link_pid, spec.run_pid)
    with ExitStack() as stack:
        log = stack.enter_context(EventLog(spec.out / "events.jsonl"))
        log.add("cell_start", cell_id=spec.cell_id, pid=os.getpid())
        step.warm_up()
        if spec.warmup_samples:
            with make_loader(spec, workload, step.device, warmup=True) as loader:
                warm = run_epoch(loader, step, 0, lambda done: driver.send("progress", samples=done))
                log.add("warm_up", batches=len(warm), samples=sum(len(r.ids) for r in warm))
        energy = stack.enter_context(closing(EnergyReader(spec.energy_store)))
        losses = getattr(step, "losses", None)
        began = time.monotonic_ns()
        loader = stack.enter_context(make_loader(spec, workload, step.device))
        log.add("loader_made", duration_ns=time.monotonic_ns() - began)
        for epoch in range(1, spec.epochs + 1):
            driver.send("ready", epoch=epoch, gpu=_board(step.device))
            if not json.loads(driver.receive()).get("go"):
                raise CellError("the harness ended the cell")
            seen, before = len(losses or ()), _times_skipped(loader)
            records = measured_epoch(
                loader, step, epoch, log, counters, lambda done: driver.send("progress", samples=done), energy.read
            )
            if (times := _times_skipped(loader) - before) > 0:
                log.add(SKIPPED, epoch=epoch, count=times, samples=loader.stats().skipped)
            if not records:
                raise CellError(_why_no_batch(spec.loader.target, loader, epoch))
            epoch_losses = None if losses is None else [float(loss) for loss in losses[seen:]]
            save_batches(records, epoch, spec.out / f"batches-{epoch:04d}.parquet", epoch_losses)
            driver.send("epoch_done", epoch=epoch, samples=sum(len(r.ids) for r in records))
        stats = loader.stats()
        accelerator = AcceleratorRecord(
            label=step.label,
            kind=step.kind,
            emulated=step.emulated,
            citation=step.citation,
            busy_w=step.power.busy_w if step.power else None,
            idle_w=step.power.idle_w if step.power else None,
            power_citation=step.power.citation if step.power else None,
        )
        driver.send(
            "done",
            notes=list(loader.notes),
            stats={"batches": stats.batches, "samples": stats.samples, "bytes": stats.bytes, **stats.details},
            accelerator=asdict(accelerator),
        )


def make_loader(spec: CellSpec, workload: Workload, device: str, *, warmup: bool = False) -> Loader:
    """Make the cell's loader from its spec; `warmup` makes one over the first few samples alone.

    Raises ConfigError for arguments that the loader does not take.
    """
    common: dict[str, object] = {
        "transform": workload.transform,
        "batch_size": workload.batch_size,
        "seed": spec.seed,
        "device": device,
    }
    if spec.loader.reads == "stream":
        common |= _stream_arguments(spec, warmup=warmup)
    else:
        samples = Samples.load(spec.samples).at(spec.data_root or Path())
        common["samples"] = samples.first(spec.warmup_samples) if warmup else samples
    loader: Loader = instantiate(spec.loader.target, {**common, **spec.loader.params})
    return loader


def _times_skipped(loader: Loader) -> int:
    return int(loader.stats().details.get("skipped_samples", 0))


def _why_no_batch(target: str, loader: Loader, epoch: int) -> str:
    skipped = loader.stats().skipped
    if not skipped:
        return f"epoch {epoch}: {target} brought no batch; expected every sample once"
    first, why = next(iter(skipped.items()))
    return (
        f"epoch {epoch}: no batch is left of it: on_error=skip left out {len(skipped)} samples, the first of them "
        f"{first}: {why}"
    )


def _stream_arguments(spec: CellSpec, *, warmup: bool) -> dict[str, object]:
    given: dict[str, object] = (
        {"endpoint": spec.endpoints[0]} if len(spec.endpoints) == 1 else {"endpoints": list(spec.endpoints)}
    )
    if spec.keys is not None:
        given["keys"] = str(spec.keys)
    target = spec.loader.target
    if takes(target, "epochs"):
        # The loader counts from 0. Epoch 0 is the warm-up, and 1 to n are the cell's own.
        given["epochs"] = 1 if warmup else spec.epochs + 1
    if warmup:
        given["limit"] = spec.warmup_samples
    elif takes(target, "events"):
        given["events"] = spec.stream_events
    return given


def _board(device: str) -> str | None:
    """Return the UUID of the GPU that the step runs on, as NVML writes it."""
    if device != "cuda":
        return None
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def save_batches(records: list[BatchRecord], epoch: int, path: Path, losses: Sequence[float] | None = None) -> None:
    """Write one row a batch: epoch, step, samples, bytes, wait_s, step_s, ids, loss, work_s (seconds a sample)."""
    table = pa.table(
        {
            "epoch": pa.array([epoch] * len(records), pa.int32()),
            "step": pa.array(range(len(records)), pa.int32()),
            "samples": pa.array([len(r.ids) for r in records], pa.int32()),
            "bytes": pa.array([r.nbytes for r in records], pa.int64()),
            "wait_s": pa.array([r.wait_ns / 1e9 for r in records], pa.float64()),
            "step_s": pa.array([r.step_ns / 1e9 for r in records], pa.float64()),
            "ids": pa.array([r.ids for r in records], pa.list_(pa.int64())),
            "loss": pa.array(losses if losses is not None else pa.nulls(len(records)), pa.float64()),
            "work_s": pa.array([r.work_s for r in records], pa.list_(pa.float64())),
        }
    )
    pq.write_table(table, path)
