"""Drives the plan: dataset, testbed, energy agent, every cell in turn, rows and report; resumes what is missing."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf

from energymon import EnergyError, SqliteStore
from harness.cell.skipped import id_list, skipped_by_epoch
from harness.collect import collect, invalid_cells, load_cell, read_cells
from harness.config.experiment import config_hash, differences
from harness.config.specs import Experiment
from harness.errors import ConfigError, DiskError, HarnessError, Interrupted, ResultsError, TestbedError
from harness.report import render
from harness.report.figures import BrokenFigure, check_figures
from harness.results.epochs import epoch_rows
from harness.results.folder import Results, write_json, write_whole
from harness.results.ledger import Ledger
from harness.results.provenance import changes, machine, provenance
from harness.run.cell_driver import CellContext, run_cell
from harness.run.components import check_components
from harness.run.daemon import Keys, make_keys
from harness.run.energy_agent import EnergyAgent
from harness.run.plan import Cell, plan
from harness.run.progress import Progress
from harness.run.rehearsal import rehearse
from harness.run.run_datasets import RunData, open_data
from harness.system.signals import signals_held
from harness.testbed import Testbed, clean, open_testbed
from harness.testbed.memory import memory_obstacles
from harness.testbed.state import RunNames, state_root
from loaders.errors import LoaderError

__all__ = ["Outcome", "run"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    folder: Path
    failed: int
    """Cells without a result."""
    rows: int
    invalid: int
    """Rows that a validity rule refuses."""
    broken: tuple[BrokenFigure, ...]
    """Figures that cannot be drawn."""


def run(
    experiment: Experiment, cfg: DictConfig, progress: Progress, command: str, on_folder: Callable[[Path], None]
) -> Outcome:
    """Run (or resume) an experiment, which `experiment_from` made of `cfg`.

    `command` is what the user typed, for the provenance; `on_folder` is told the results folder once there is one.
    Raises HarnessError, after which nothing is left behind but the results.
    """
    _check(experiment, cfg)
    with ExitStack() as folder, ExitStack() as stack:
        here = machine(_targets(experiment))
        resumed = None if cfg.resume is None else _resumed(cfg, here, folder, progress)
        for removed in clean():
            progress.note(f"removed what a dead run had left: {removed}")
        cache = Path(cfg.cache_dir).expanduser()
        data = _open_data(experiment, cache, progress)
        rehearse(experiment, data, progress.follow)
        results = _results(cfg, experiment, data.content_hash, resumed, folder)
        on_folder(results.folder)
        ledger = Ledger(results.ledger)
        cells = plan(experiment)
        keys: dict[str, Keys] = {}
        # Before the cells are read, which need it: a resumed run's may be damaged.
        on_nodes = data.store(results.folder, keys)
        _check_store(results, ledger, progress)
        todo = _todo(cfg, results, cells, ledger, progress)
        failures: dict[str, str] = {}
        if not todo:
            _point_latest(results, progress)
        try:
            if todo:
                progress.doing("starting the testbed and the energy agent")
                regimes = list(experiment.regimes.values())
                testbed = stack.enter_context(
                    open_testbed(
                        experiment.testbed.kind,
                        uuid4().hex[:8],
                        regimes,
                        link_kind=experiment.testbed.link,
                        caches=experiment.testbed.caches,
                        congestion=experiment.testbed.congestion,
                    )
                )
                log = results.folder / "energy.log"
                agent = stack.enter_context(
                    EnergyAgent(
                        results.energy,
                        experiment.energy,
                        node=platform.node(),
                        run_id=testbed.run_id,
                        log=log,
                        send=experiment.store,
                        on_restart=lambda message: ledger.append("note", message=message),
                    )
                )
                record = provenance(command, here, testbed.describe(), agent.sensors, data.provenance())
                if resumed is not None:
                    _check_same(cfg, resumed, {key: record[key] for key in ("testbed", "energy")}, progress)
                session = results.new_provenance()
                write_json(session, record)
                keys.update(_keys(experiment, testbed))
                told = {key: one.describe() for key, one in data.by_workload.items()}
                context = CellContext(experiment, results, testbed, agent, on_nodes, told, session.name)
                failures = _run_cells(context, todo, ledger, progress, already=len(cells) - len(todo))
        except BaseException:
            with signals_held():
                try:
                    stack.close()
                finally:
                    # The error in flight is the one to tell; the rows can be collected again.
                    with suppress(HarnessError, OSError):
                        collect(results)
            raise
        with signals_held():
            stack.close()
            collected = collect(results)
        rendered = render(results.folder)
    without = failures.keys() | collected.damaged.keys()
    return Outcome(results.folder, len(without), len(collected.rows), len(collected.invalid), rendered.broken)


def _check(experiment: Experiment, cfg: DictConfig) -> None:
    check_components(experiment, OmegaConf.to_container(cfg.loaders, resolve=True))  # type: ignore[arg-type]
    if experiment.testbed.memory_mb is not None and (obstacles := memory_obstacles()):
        raise TestbedError("; ".join(obstacles))
    try:
        check_figures(experiment.figures)
    except ResultsError as error:
        raise ConfigError(str(error)) from error


def _run_cells(
    context: CellContext, todo: list[Cell], ledger: Ledger, progress: Progress, already: int
) -> dict[str, str]:
    failures: dict[str, str] = {}
    # Not before: a run that cannot start is not the newest that there is to look at.
    _point_latest(context.results, progress)
    progress.start(todo, already)
    for cell in todo:
        context.results.set_aside(cell.cell_id)
        ledger.append("started", cell.cell_id)
        progress.cell_started(cell, context.datasets[cell.workload]["samples"])
        try:
            if context.agent.restart_if_failed():
                ledger.append("note", message="the energy agent was started again")
            run_cell(context, cell, progress)
        except Interrupted as interrupt:
            _mark_failed(context, cell, "interrupted", str(interrupt))
            ledger.append("interrupted", cell.cell_id, str(interrupt))
            raise
        except (OSError, DiskError) as error:
            with suppress(OSError):
                _mark_failed(context, cell, "failed", str(error))
                ledger.append("failed", cell.cell_id, str(error))
            raise
        except (HarnessError, LoaderError, EnergyError) as error:
            failures[cell.cell_id] = str(error)
            _mark_failed(context, cell, "failed", str(error))
            ledger.append("failed", cell.cell_id, str(error))
            progress.cell_failed(cell, str(error))
        else:
            summary, left_out = _summary(context.results.cell(cell.cell_id))
            ledger.append("done", cell.cell_id, left_out)
            progress.cell_done(cell, f"{summary}; {left_out}" if left_out else summary)
    progress.stop()
    return failures


def _point_latest(results: Results, progress: Progress) -> None:
    if obstacle := results.point_latest():
        progress.note(f"{obstacle}, so it does not lead to this run; resume={results.folder.name} does")


def _summary(folder: Path) -> tuple[str, str]:
    """Return what a cell measured, and what its loader left out by policy; empty when nothing was."""
    data = load_cell(folder)
    rows = epoch_rows(data)
    text = f"{median(row.duration_s for row in rows):.3g} s"
    joules = [row.total_j for row in rows if row.total_j is not None]
    if joules:
        estimated = any("estimate" in row.energy_source for row in rows)
        text += f", {median(joules):.3g} J" + (" (estimate)" if estimated else "")
    ids = {sample_id for epoch in skipped_by_epoch(data.events).values() for sample_id in epoch.samples}
    many = f"{len(ids)} sample{'' if len(ids) == 1 else 's'}"
    return text, f"{many} skipped by policy: {id_list(ids)}" if ids else ""


def _mark_failed(context: CellContext, cell: Cell, status: str, reason: str) -> None:
    partial = context.results.partial(cell.cell_id)
    if context.results.is_done(cell.cell_id) and not partial.exists():
        return
    partial.mkdir(exist_ok=True)
    regime = context.experiment.regimes[cell.regime]
    content = {**asdict(cell), "regime": regime.model_dump(), "status": status, "failure": reason}
    write_json(partial / "cell.json", content)


def _open_data(experiment: Experiment, cache: Path, progress: Progress) -> RunData:
    data = open_data(experiment, cache, progress.follow)
    skipped = [path for one in data.each for path in one.handle.skipped]
    for path in skipped[:10]:
        progress.note(f"skipped {path}: broken (dataset.on_error=skip)")
    if len(skipped) > 10:
        progress.note(f"skipped {len(skipped)} broken files in all; provenance.json lists them")
    return data


def _keys(experiment: Experiment, testbed: Testbed) -> dict[str, Keys]:
    """Make the run's keys, in its own folder, which goes with it."""
    modules = {loader.daemon["module"] for loader in experiment.loaders.values() if loader.secure}
    folder = RunNames(testbed.run_id, state_root()).folder
    return {module: make_keys(module, folder / f"keys-{n}") for n, module in enumerate(sorted(modules))}


def _todo(cfg: DictConfig, results: Results, cells: Sequence[Cell], ledger: Ledger, progress: Progress) -> list[Cell]:
    """Return the cells to measure: the missing, the damaged, which are set aside, and if asked for the invalid ones."""
    whole, damaged = read_cells(results, [cell.cell_id for cell in cells])
    for cell_id, reason in damaged.items():
        aside = results.set_aside(cell_id, "damaged")
        message = f"{reason.rpartition(';')[0]}; it is kept as {aside.name if aside else cell_id} and measured again"
        ledger.append("damaged", cell_id, message)
        progress.note(f"damaged cell: {message}")
    kept = {data.cell["cell_id"] for data in whole}
    if cfg.get("resume_invalid"):
        kept -= invalid_cells(whole, cfg)
    return [cell for cell in cells if cell.cell_id not in kept]


def _targets(experiment: Experiment) -> list[str]:
    parts = (experiment.loaders, experiment.workloads, experiment.datasets)
    return [component.target for part in parts for component in part.values()]


def _check_same(cfg: DictConfig, resumed: Results, now: Mapping[str, Any], progress: Progress) -> None:
    """Refuse to add rows to those of another machine, install or environment, or say so where that is wanted.

    Raises ResultsError with the differences.
    """
    sessions = dict.fromkeys(resumed.sessions(cell["cell_id"] for cell in resumed.read_plan()["cells"]).values())
    found: dict[str, None] = {}
    for name in sessions:
        try:
            found |= dict.fromkeys(changes(resumed.read_session(name), now))
        except ResultsError as error:
            found[str(error)] = None
    if not found:
        return
    text = "; ".join([*found][:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
    if not cfg.get("resume_mixed"):
        raise ResultsError(
            f"resume={cfg.resume}: {resumed.folder.name} was measured elsewhere: {text}; resume it there, "
            "start a new run, or add resume_mixed=true, which goes on and marks the rows"
        )
    Ledger(resumed.ledger).append("note", message=f"goes on elsewhere: {text}")
    progress.note(f"other than before: {text}; the rows are marked")


def _check_store(results: Results, ledger: Ledger, progress: Progress) -> None:
    """Set a damaged energy store aside, which no agent could go on with; finished cells have their readings."""
    if not results.energy.exists():
        return
    try:
        with SqliteStore.open(results.energy):
            return
    except EnergyError as error:
        message = f"damaged energy store: {error}; it is kept as {results.set_store_aside().name}, and a new one begun"
    ledger.append("damaged", message=message)
    progress.note(message)


def _resumed(cfg: DictConfig, here: Mapping[str, Any], folder: ExitStack, progress: Progress) -> Results:
    """Return the run that is to go on, locked until `folder` is closed.

    Raises ResultsError where there is none, another process runs it, or it is of another config or another place than
    `here`.
    """
    results = Results.find(str(cfg.resume), Path(cfg.results_dir))
    folder.enter_context(results.locked())
    if results.read_plan().get("config_hash") != config_hash(cfg):
        raise ResultsError(
            f"resume={cfg.resume}: the config differs from that of {results.folder.name} "
            f"({'; '.join(differences(results.read_config(), cfg))}); "
            f"give the same overrides, or resume={cfg.resume} alone"
        )
    _check_same(cfg, results, here, progress)
    return results


def _results(
    cfg: DictConfig, experiment: Experiment, dataset_hash: str, resumed: Results | None, folder: ExitStack
) -> Results:
    if resumed is None:
        results = Results.create(Path(cfg.results_dir), experiment.name)
        folder.enter_context(results.locked())
        write_whole(results.config, OmegaConf.to_yaml(cfg, resolve=True).encode())
        planned: dict[str, Any] = {
            "run_id": results.folder.name,
            "experiment": experiment.name,
            "config_hash": config_hash(cfg),
            "dataset_hash": dataset_hash,
            "seed": experiment.seed,
            "cells": [asdict(cell) for cell in plan(experiment)],
        }
        write_json(results.plan, planned)
        return results
    stored = resumed.read_plan()
    if stored.get("dataset_hash") != dataset_hash:
        raise ResultsError(
            f"resume={cfg.resume}: the dataset is not the one that {resumed.folder.name} began with "
            f"({dataset_hash}, expected {stored.get('dataset_hash')}); restore it, or start a new run"
        )
    # Tolerances and figures may have changed; what is shown and judged follows the newest.
    write_whole(resumed.config, OmegaConf.to_yaml(cfg, resolve=True).encode())
    resumed.cells.mkdir(exist_ok=True)
    Ledger(resumed.ledger).append("resumed")
    return resumed
