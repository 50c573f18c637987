"""Runs the cells of a plan one after another; a cell that fails is stored with its reason, and the others go on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median

from energymon import EnergyError
from harness.cell.skipped import id_list, skipped_by_epoch
from harness.config.specs import Tolerances
from harness.errors import DiskError, HarnessError, TestbedError
from harness.results.cell_folder import load_cell
from harness.results.cells import Cell, FailedCell
from harness.results.collect import judge_cells
from harness.results.epoch_row import select_settled
from harness.results.files import write_json
from harness.results.folder import Ledger
from harness.run.cells.context import CellContext
from harness.run.cells.run_cell import run_cell
from harness.run.progress import RunProgress
from harness.testbed import Testbed
from joulefeed.signals import Interrupted, interrupted
from loaders.errors import LoaderError


def run_cells(context: CellContext, todo: Sequence[Cell], ledger: Ledger, progress: RunProgress) -> dict[str, str]:
    """Run cells one after another, whose progress is started; returns why some failed, by id.

    Raises Interrupted, OSError or DiskError, which end the run, and TestbedError for a lost host where the policy is to
    stop.
    """
    failures: dict[str, str] = {}
    for cell in todo:
        if (interrupt := interrupted()) is not None:  # a library swallowed it, or raised its own error
            raise interrupt
        context.run.set_aside(cell.cell_id)
        ledger.append("started", cell.cell_id)
        progress.cell_started(cell, len(context.data[cell.workload].opened.handle.samples))
        try:
            if context.agent.restart_if_failed():
                ledger.append("note", message="the energy agent was started again")
            context.testbed.require()
            run_cell(context, cell, progress)
        except Interrupted as interrupt:
            _mark_failed(context, cell, ledger, "interrupted", str(interrupt))
            raise
        except (OSError, DiskError) as error:
            with suppress(OSError):
                _mark_failed(context, cell, ledger, "failed", str(error))
            raise
        except (HarnessError, LoaderError, EnergyError) as error:
            lost = _lost_hosts(context.testbed)
            reason = f"{lost}: {error}" if lost and lost not in str(error) else str(error)
            failures[cell.cell_id] = reason
            _mark_failed(context, cell, ledger, "failed", reason)
            progress.cell_failed(cell, reason)
            if lost and context.experiment.testbed.on_lost_host == "stop":
                raise TestbedError(f"{lost}; testbed.on_lost_host=continue goes on with the other cells") from error
        else:
            summary, left_out = _summarise(context.run.cell_folder(cell.cell_id), context.experiment.checks)
            ledger.append("done", cell.cell_id, left_out)
            progress.cell_done(cell, f"{summary}; {left_out}" if left_out else summary)
    return failures


def _lost_hosts(testbed: Testbed) -> str:
    """Return which hosts of a testbed are lost, and why; empty when none is."""
    try:
        testbed.require()
    except TestbedError as error:
        return str(error)
    return ""


def _mark_failed(context: CellContext, cell: Cell, ledger: Ledger, status: str, reason: str) -> None:
    partial = context.run.partial_folder(cell.cell_id)
    if partial.exists() or not context.run.is_done(cell.cell_id):
        partial.mkdir(exist_ok=True)
        regime = context.experiment.regimes[cell.regime]
        failed = FailedCell(**(asdict(cell) | {"regime": regime}), status=status, failure=reason)
        write_json(partial / "cell.json", failed)
    ledger.append(status, cell.cell_id, reason)


def _summarise(folder: Path, tolerances: Tolerances) -> tuple[str, str]:
    """Return what a cell measured and which rules refuse it, and what its loader skipped by policy, maybe nothing."""
    data = load_cell(folder)
    rows, checks = judge_cells([data], tolerances)
    refusing = sorted({check.rule for check in checks if check.refuses})
    rows = list(select_settled(rows)) or rows
    text = f"{median(row.duration_s for row in rows):.3g} s"
    joules = [row.drawn_j for row in rows if row.drawn_j is not None]
    if joules:
        text += f", {median(joules):.3g} J" + (" (estimate)" if any(row.estimated for row in rows) else "")
    text += f"; invalid: {', '.join(refusing)}" if refusing else ""
    ids = {sample_id for epoch in skipped_by_epoch(data.events).values() for sample_id in epoch.samples}
    many = f"{len(ids)} sample{'' if len(ids) == 1 else 's'}"
    return text, f"{many} skipped by policy: {id_list(ids)}" if ids else ""
