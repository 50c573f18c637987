"""One cell, in a process of its own on the compute node: a loader feeds a training step, epoch by epoch.

The harness talks to it in JSON lines. In, on stdin: first the modules to import, then the cell's spec, then
`{"go": true}` before every epoch. Out, on the process's first stdout: one state a line. EOF on stdin means that
the harness is gone, and ends the process. A cell of several ranks is several such processes. With `--template` the
process is none of a cell, and is forked for each.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sized
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from harness.cell.counters import CellCounters
from harness.cell.epoch import EnergyReader, measured_epoch, run_epoch, save_batches
from harness.cell.events import CONTENT, SET_UP, EventLog
from harness.cell.loader import batch_size_of, count_samples, make_loader
from harness.cell.messages import AcceleratorRecord, CellSpec
from harness.cell.ranks import Ranks, joined
from harness.cell.readers import measure_readers
from harness.cell.settle import settle
from harness.cell.skipped import EVENT as SKIPPED
from harness.cell.template import FLAG, fork_cells
from harness.config.targets import instantiate
from harness.errors import CellError
from harness.system.heat import Heat
from loaders.base import Loader

if TYPE_CHECKING:
    from harness.cell.content import KeptSamples
    from harness.workloads import Workload


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

    def wait_go(self) -> None:
        """Wait until an epoch may begin. Raises CellError where the driver ends the cell."""
        if not json.loads(self.receive()).get("go"):
            raise CellError("the harness ended the cell")


def main() -> int:
    """Run the cell that stdin describes, here or in forks of this process; 0 when it is whole, 3 when it failed."""
    if FLAG in sys.argv and not fork_cells():
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The harness asks for the stacks of a cell that makes no progress; they go to its log.
    faulthandler.register(signal.SIGUSR1)
    # What libraries print must not mix with the conversation.
    writer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = _Driver(sys.stdin, writer)
    try:
        gc.disable()  # imports make what stays: a tenth of their time would go to looking for what does not
        for module in json.loads(driver.receive())["import"]:
            importlib.import_module(module)
        gc.enable()
        driver.send("imported")
        _run(CellSpec.from_json(driver.receive()), driver)
    except Exception as error:  # noqa: BLE001 - reported whole, and the cell fails
        import traceback

        traceback.print_exc()
        driver.send("failed", kind=type(error).__name__, message=str(error) or repr(error))
        return CellError.exit_status
    return 0


def _run(spec: CellSpec, driver: _Driver) -> None:
    from harness.workloads.accelerator import choose_device

    workload = instantiate(spec.workload.target, spec.workload.params)
    if spec.tries_readers:
        _try_readers(spec, driver, workload)
        return
    if spec.ranks is None:
        _train(spec, driver, workload, None)
        return
    device = choose_device(spec.accelerator.model_dump(), workload.name)
    with joined(spec.ranks, device, lambda port: driver.send("store", port=port)) as ranks:
        _train(spec, driver, workload, ranks)


def _try_readers(spec: CellSpec, driver: _Driver, workload: Workload) -> None:
    from harness.workloads.accelerator import make_step

    step = make_step(workload, spec.accelerator.model_dump(), spec.seed, synchronised=False)
    step.warm_up()
    for epoch in itertools.count(1):
        driver.send("ready")
        if not (readers := json.loads(driver.receive())["readers"]):
            return
        driver.send("tried", readers=readers, samples_per_s=measure_readers(spec, workload, step, readers, epoch))


def _train(spec: CellSpec, driver: _Driver, workload: Workload, ranks: Ranks | None) -> None:
    from harness.cell.content import KeptSamples
    from harness.workloads.accelerator import make_step

    make = partial(make_step, workload, spec.accelerator.model_dump(), spec.seed)

    def progress(samples: int, stall_s: float = 0.0, message: str = "") -> None:
        driver.send("progress", samples=samples, stall_s=stall_s, message=message)

    with ExitStack() as stack:
        log = stack.enter_context(EventLog(spec.out / "events.jsonl"))
        log.add("cell_start", cell_id=spec.cell_id, pid=os.getpid())
        heat = stack.enter_context(Heat())
        counters = CellCounters(spec.interface, spec.link_pid, spec.run_pid, spec.pids, heat)
        settled = settle(make, heat.read, spec.settle, lambda text: progress(0, message=text))
        if settled:
            log.add("settled", how=settled)
        step = make(synchronised=ranks is not None)
        step.warm_up()
        if spec.warmup_samples:
            with make_loader(spec, workload, step.device, warmup=True, ranks=ranks) as loader:
                agreed = _agree(ranks, loader, spec, workload)
                steps = None if agreed is None else agreed.steps
                warm = run_epoch(loader, step, 0, progress, steps)
                log.add("warm_up", batches=len(warm), samples=sum(len(r.ids) for r in warm))
        energy = stack.enter_context(closing(EnergyReader(spec.energy_store)))
        losses = getattr(step, "losses", None)
        log.add(SET_UP, **counters.read())
        began = time.monotonic_ns()
        loader = stack.enter_context(make_loader(spec, workload, step.device, ranks=ranks))
        log.add("loader_made", duration_ns=time.monotonic_ns() - began, **counters.read())
        ranks = _agree(ranks, loader, spec, workload)
        # One reading bounds the epoch of all ranks.
        read = energy.read if ranks is None or ranks.rank == 0 else lambda: False
        # What an epoch of this rank has at least.
        least = max(1, count_samples(spec) // (1 if ranks is None else ranks.world_size))
        kept = {epoch: KeptSamples(least) for epoch in range(1, spec.epochs + 1)}
        for epoch, chosen in kept.items():
            driver.send("ready", epoch=epoch, gpus=_boards(step.device), settled=settled)
            driver.wait_go()
            seen, before = len(losses or ()), _times_skipped(loader)
            records = measured_epoch(loader, step, epoch, log, counters, progress, read, ranks, chosen)
            chosen.leave_device()
            if (times := _times_skipped(loader) - before) > 0:
                log.add(SKIPPED, epoch=epoch, count=times, samples=loader.stats().skipped)
            if not records:
                raise CellError(_why_no_batch(spec.loader.target, loader, epoch))
            epoch_losses = None if losses is None else [float(loss) for loss in losses[seen:]]
            path = spec.out / f"batches-{epoch:04d}.jsonl"
            save_batches(records, epoch, path, epoch_losses, keeps_labels=_brings_classes(workload))
            samples = sum(len(r.ids) for r in records)
            driver.send("epoch_done", epoch=epoch, samples=samples)
        _compare(spec, workload, loader, kept, log, lambda: progress(samples))
        stats = loader.stats()
        accelerator = AcceleratorRecord(
            label=step.label,
            kind=step.kind,
            emulated=step.emulated,
            citation=step.citation,
            seconds_per_sample=getattr(step, "seconds_per_sample", None),
            busy_w=step.power.busy_w if step.power else None,
            idle_w=step.power.idle_w if step.power else None,
            power_citation=step.power.citation if step.power else None,
            boards=_boards(step.device),
            gradient_bytes=step.gradient_bytes,
        )
        locked = getattr(sys, "_is_gil_enabled", lambda: True)()
        driver.send(
            "done",
            notes=[*loader.notes, *([] if locked else ["ran without the interpreter's lock"])],
            stats={"batches": stats.batches, "samples": stats.samples, "bytes": stats.bytes, **stats.details},
            accelerator=asdict(accelerator),
            model_check=getattr(workload, "model_check", ""),
        )


def _brings_classes(workload: Workload) -> bool:
    from loaders.pipeline.callables import as_pipeline

    return bool(getattr(as_pipeline(workload.transform), "labels_are_classes", False))


def _compare(
    spec: CellSpec,
    workload: Workload,
    loader: Loader,
    kept: Mapping[int, KeptSamples],
    log: EventLog,
    progress: Callable[[], None],
) -> None:
    """Compare the samples that were kept with what the pipeline makes; after all epochs, so that none waits for it.

    `progress` is called before each epoch's, so that nobody takes the cell for one that hangs.
    """
    from harness.cell.content import Comparison
    from loaders.pipeline.callables import as_pipeline

    comparison = Comparison(
        spec.samples,
        spec.data_root,
        as_pipeline(workload.transform),
        spec.loader.params.get("seed", spec.seed),
        augments_itself=getattr(loader, "augments_itself", False),
    )
    for epoch, one in kept.items():
        progress()
        log.add(CONTENT, **comparison.compare(epoch, one.rows).to_event())


def _agree(ranks: Ranks | None, loader: Loader, spec: CellSpec, workload: Workload) -> Ranks | None:
    """Agree with the other ranks on the steps of an epoch; None for a cell of one process."""
    if ranks is None:
        return None
    return ranks.agree(math.ceil(len(cast(Sized, loader)) / batch_size_of(spec, workload, ranks)))


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


def _boards(device: str) -> list[str]:
    """Return the UUID of the GPU that the step runs on, as NVML writes it; none for a step on the CPU."""
    if device != "cuda":
        return []
    import torch

    return [f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"]
