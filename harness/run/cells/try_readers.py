"""Finds how many files a loader reads at once where its config has `auto`, before its first cell of a regime.

The loader is tried on pieces of an epoch with cold caches, and the number is kept for the whole run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict

from harness.cell.messages import CellSpec
from harness.config.specs import LoaderSpec
from harness.results.cells import Cell
from harness.results.files import RUN, read_json, write_json
from harness.results.folder import RunFolder
from harness.run.cells.context import CellContext
from harness.run.cells.data_access import open_access
from harness.run.cells.ranks import CellRanks
from harness.run.cells.readers import LIMIT_S, FoundReaders, choose_readers, find_next
from harness.run.progress import RunProgress


def with_readers(context: CellContext, cell: Cell, watcher: RunProgress) -> LoaderSpec:
    """Return the loader of a cell; with a number of readers in the place of `auto`, which is found, now or before.

    Raises HarnessError where the loader cannot be tried.
    """
    loader = context.experiment.loaders[cell.loader]
    if not loader.finds_readers:
        return loader
    key = readers_key(cell)
    found = context.readers.get(key)
    if found is None:
        found = context.readers[key] = _search(context, cell, loader, watcher)
        save_found(context.run, context.readers)
        watcher.note(f"{cell.loader} · {cell.workload}: {found.describe(cell.regime)}")
    return loader.read_with(found.readers)


def readers_key(cell: Cell) -> str:
    """Return what a number of readers is found for: loader, workload and regime."""
    return f"{cell.loader} {cell.workload} {cell.regime}"


def save_found(folder: RunFolder, found: Mapping[str, FoundReaders]) -> None:
    """Write the numbers that were found into a run's folder."""
    write_json(folder.readers, {key: asdict(one) for key, one in found.items()})


def read_found(folder: RunFolder) -> dict[str, FoundReaders]:
    """Return the numbers that were found in a run before. Raises ResultsError where its file is damaged."""
    return read_json(folder.readers, dict[str, FoundReaders], RUN) if folder.readers.exists() else {}


def _search(context: CellContext, cell: Cell, loader: LoaderSpec, watcher: RunProgress) -> FoundReaders:
    experiment, testbed = context.experiment, context.testbed
    regime, workload = experiment.regimes[cell.regime], experiment.workloads[cell.workload]
    folder = context.run.partial_folder(cell.cell_id).resolve() / "readers"
    folder.mkdir()
    doing = "finding how many files to read at once"
    watcher.phase(doing)
    rates: dict[int, float | None] = {}
    with ExitStack() as stack:
        stall_s = 60 * experiment.cell_stall_min
        process = stack.enter_context(
            CellRanks([testbed.compute], [folder], stall_s, context.templates, loader.environment)
        )
        deadline = time.monotonic() + experiment.cell_timeout_s
        process.send({"import": ["torch", *(one.target.rpartition(".")[0] for one in (loader, workload))]})
        testbed.set_regime(regime)
        data = context.data[cell.workload]
        access = open_access(data, testbed, loader, regime, stack, folder)[testbed.compute]
        process.receive(deadline, "importing its modules")
        spec = CellSpec(
            cell_id=cell.cell_id,
            out=folder,
            loader=loader,
            workload=workload,
            accelerator=experiment.accelerator,
            samples=access.samples_file,
            data_root=access.root,
            seed=cell.seed,
            warmup_samples=0,
            energy_store=context.run.energy.resolve(),
            tries_readers=True,
        )
        process.start([spec])
        ends = time.monotonic() + LIMIT_S
        while True:
            state = process.receive(deadline, doing)
            if state.state == "tried":
                rates[state.readers] = state.samples_per_s
                continue
            readers = find_next(rates)
            is_whole = readers is None or time.monotonic() < ends
            if readers is None or not is_whole:
                process.send({"readers": 0})
                break
            testbed.drop_caches(access.source, access.parts)
            doing = f"reading {readers} files at once to find how many are best"
            process.send({"readers": readers})
    shutil.rmtree(folder)
    return FoundReaders(choose_readers(rates), rates, is_whole)
