"""Opens the results folder of a run, new or resumed, and finds what it lacks and whether the machine is the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from energymon import EnergyError, SqliteStore
from harness.config.experiment import config_hash, differences
from harness.config.specs import Experiment
from harness.errors import ResultsError
from harness.results.cells import Cell
from harness.results.collect import find_invalid_cells, read_cells
from harness.results.files import write_json, write_whole
from harness.results.folder import Ledger, RunFolder, RunPlan
from harness.results.provenance import Provenance, list_changes
from harness.run.plan import plan_cells
from harness.run.progress import RunProgress


def find_resumed(cfg: DictConfig, here: Provenance, lock: ExitStack, progress: RunProgress) -> RunFolder:
    """Return the run to resume, locked until `lock` is closed.

    Raises ResultsError where there is no such run, another process runs it, or it has another config or was measured
    elsewhere.
    """
    folder = RunFolder.find(str(cfg.resume), Path(cfg.results_dir))
    lock.enter_context(folder.hold_lock())
    if folder.read_plan().config_hash != config_hash(cfg):
        raise ResultsError(
            f"resume={cfg.resume}: the config differs from that of {folder.folder.name} "
            f"({'; '.join(differences(folder.read_config(), cfg))}); "
            f"give the same overrides, or resume={cfg.resume} alone"
        )
    check_same(cfg, folder, here, progress)
    return folder


def open_folder(
    cfg: DictConfig, experiment: Experiment, dataset_hash: str, resumed: RunFolder | None, lock: ExitStack
) -> RunFolder:
    """Return the run's folder, locked until `lock` is closed: `resumed`, or a new one where it is None.

    Raises ResultsError where the resumed run had another dataset.
    """
    config = OmegaConf.to_yaml(cfg, resolve=True).encode()
    if resumed is None:
        folder = RunFolder.create(Path(cfg.results_dir), experiment.name)
        lock.enter_context(folder.hold_lock())
        write_whole(folder.config, config)
        planned = RunPlan(
            run_id=folder.folder.name,
            experiment=experiment.name,
            config_hash=config_hash(cfg),
            dataset_hash=dataset_hash,
            seed=experiment.seed,
            cells=plan_cells(experiment),
        )
        write_json(folder.plan, planned)
        return folder
    stored = resumed.read_plan().dataset_hash
    if stored != dataset_hash:
        raise ResultsError(
            f"resume={cfg.resume}: the dataset is not the one that {resumed.folder.name} started with "
            f"({dataset_hash}, expected {stored}); restore it, or start a new run"
        )
    # Tolerances and figures may have changed. The report follows the newest.
    write_whole(resumed.config, config)
    resumed.cells.mkdir(exist_ok=True)
    Ledger(resumed.ledger).append("resumed")
    return resumed


def find_missing(
    cfg: DictConfig,
    experiment: Experiment,
    folder: RunFolder,
    cells: Sequence[Cell],
    ledger: Ledger,
    progress: RunProgress,
) -> list[Cell]:
    """Return the cells to measure: the missing, the damaged, which are set aside, and on request the invalid ones."""
    finished, damaged = read_cells(folder, [cell.cell_id for cell in cells])
    for cell_id, reason in damaged.items():
        aside = folder.set_aside(cell_id, "damaged")
        message = f"{reason.rpartition(';')[0]}; it is kept as {aside.name if aside else cell_id} and measured again"
        ledger.append("damaged", cell_id, message)
        progress.note(f"damaged cell: {message}")
    kept = {data.cell.cell_id for data in finished}
    if cfg.get("resume_invalid"):
        kept -= find_invalid_cells(finished, experiment.checks)
    return [cell for cell in cells if cell.cell_id not in kept]


def check_same(cfg: DictConfig, resumed: RunFolder, now: Provenance, progress: RunProgress) -> None:
    """Refuse to add rows of another machine, install or environment, or say so where `resume_mixed` allows it.

    Raises ResultsError with the differences.
    """
    found: dict[str, None] = {}
    for name in dict.fromkeys(resumed.find_sessions(cell.cell_id for cell in resumed.read_plan().cells).values()):
        try:
            found |= dict.fromkeys(list_changes(resumed.read_session(name), now))
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


def check_store(folder: RunFolder, ledger: Ledger, progress: RunProgress) -> None:
    """Set a damaged energy store aside. No agent could use it, and finished cells have their own readings."""
    if not folder.energy.exists():
        return
    try:
        with SqliteStore.open(folder.energy):
            return
    except EnergyError as error:
        message = f"damaged energy store: {error}; it is kept as {folder.set_store_aside().name}, and a new one starts"
    ledger.append("damaged", message=message)
    progress.note(message)
