"""Drives the plan: dataset, testbed, energy agent, every cell in turn, rows and report. Resumes what is missing."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf

from harness.config.specs import Experiment
from harness.errors import ConfigError, DatasetError, HarnessError, TestbedError
from harness.results.cells import Cell
from harness.results.collect import collect
from harness.results.files import write_json
from harness.results.folder import Ledger, RunFolder
from harness.results.provenance import Provenance, collect_provenance, describe_machine, make_field
from harness.run.again import measure_again
from harness.run.cells.context import CellContext
from harness.run.cells.loop import run_cells
from harness.run.cells.template import Templates
from harness.run.cells.try_readers import read_found
from harness.run.check import check_components, try_loaders
from harness.run.daemon import Keys, make_keys
from harness.run.datasets import RunData, open_data
from harness.run.energy_agent import EnergyAgent
from harness.run.host_data import open_data_on
from harness.run.host_energy import HostAgents
from harness.run.prepare import describe_environments, make_environments
from harness.run.progress import RunProgress
from harness.run.resume import check_same, check_store, find_missing, find_resumed, open_folder
from harness.testbed import Testbed, clean, open_testbed
from harness.testbed.hosts.inventory import LEAD_SSH_CONFIG, Inventory
from harness.testbed.hosts.testbed import HostsOfRun, HostsTestbed
from harness.testbed.link.measure.bounds import allowed_rtt_ms
from harness.testbed.memory import memory_obstacles
from joulefeed.signals import signals_held

_PROVENANCE_S: Final = 300.0
_ROUND_S: Final = 60.0
"""A first repeat that takes longer is shown before the others are measured."""
_SHOWN = 10
"""Broken files of a dataset that are named on the terminal."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The other hosts of a run that this host leads."""

    inventory: Inventory
    run_id: str
    ssh_config: Path = LEAD_SSH_CONFIG


def measure(
    experiment: Experiment,
    cfg: DictConfig,
    progress: RunProgress,
    command: str,
    on_folder: Callable[[Path], None],
    cluster: Cluster | None = None,
    on_round: Callable[[Path, int], object] | None = None,
) -> tuple[Path, int]:
    """Measure the missing cells of an experiment. Nothing stays behind but the results, however it ends.

    `experiment` is what `experiment_from` made of `cfg`. The user typed `command`, which the provenance has.
    `on_folder` is called with the results folder as soon as it exists, and `on_round` when a run of minutes has the
    rows of its first repeat. Without a `cluster` the run stays on this machine. Returns the results folder, and how
    many cells have no result; `on_round` gets the same.

    Raises HarnessError when the run cannot start or go on. A failed cell does not raise; the others are run.
    """
    check(experiment, cfg)
    with ExitStack() as lock, ExitStack() as stack:
        make_environments(experiment, progress.doing)
        here = describe_machine(_targets(experiment)) | describe_environments(experiment)
        resumed = None if cfg.resume is None else find_resumed(cfg, here, lock, progress)
        for removed in clean():
            progress.note(f"removed what a dead run had left: {removed}")
        # Other hosts are asked for the data, and are reached first.
        testbed = None if cluster is None else stack.enter_context(_start_testbed(experiment, progress, cluster))
        data = _open_data(experiment, cfg, testbed, progress)
        folder = open_folder(cfg, experiment, data.content_hash, resumed, lock)
        on_folder(folder.folder)
        ledger = Ledger(folder.ledger)
        cells = folder.read_plan().cells
        keys: dict[str, Keys] = {}
        # A resumed run's samples may be damaged. They are written again before the cells, which need them, are read.
        stored = data.store(folder.folder, keys)
        check_store(folder, ledger, progress)
        todo = find_missing(cfg, experiment, folder, cells, ledger, progress)
        failures: dict[str, str] = {}
        try:
            if todo:
                progress.doing("starting the testbed and the energy agent")
                testbed = testbed or stack.enter_context(_start_testbed(experiment, progress))
                _check_floor(experiment, testbed, progress)
                agent = stack.enter_context(_start_agent(experiment, folder, testbed, ledger))
                beside = HostAgents(testbed, experiment.energy, folder.folder, experiment.store, progress.note)
                hosts = stack.enter_context(beside)
                record = collect_provenance(command, here, testbed.describe(), agent.sensors, data.provenance())
                record |= _hosts_provenance(testbed, here, hosts, _targets(experiment))
                if resumed is not None:
                    check_same(cfg, resumed, {key: record[key] for key in ("testbed", "energy")}, progress)
                session = folder.name_provenance()
                write_json(session, record)
                keys.update(_make_keys(experiment, testbed))
                context = CellContext(
                    experiment,
                    folder,
                    testbed,
                    agent,
                    hosts,
                    stored,
                    stack.enter_context(Templates()),
                    session.name,
                    readers=read_found(folder),
                )
                _point_latest(folder, progress)
                failures = _run(context, cells, todo, ledger, progress, on_round)
            else:
                _point_latest(folder, progress)
        except BaseException:
            with signals_held():
                try:
                    stack.close()
                finally:
                    # The error in flight is the one to report. The rows can be collected again.
                    with suppress(HarnessError, OSError):
                        collect(folder)
            raise
        with signals_held():
            stack.close()
            collected = collect(folder)
    return folder.folder, len(failures.keys() | collected.damaged.keys())


def _run(
    context: CellContext,
    cells: Sequence[Cell],
    todo: Sequence[Cell],
    ledger: Ledger,
    progress: RunProgress,
    on_round: Callable[[Path, int], object] | None,
) -> dict[str, str]:
    """Run the cells that are to do, and again those that were disturbed; returns why some failed, by id."""
    began = time.monotonic()
    first = [cell for cell in todo if cell.repeat == 1]
    others = todo[len(first) :]
    progress.show_in(context.run.live)
    progress.start(todo, len(cells) - len(todo))
    failures = run_cells(context, first, ledger, progress)
    if on_round and first and others and time.monotonic() - began > _ROUND_S:
        collect(context.run)
        on_round(context.run.folder, len(failures))
        progress.note(f"first figures, of one repeat: {context.run.folder / 'report.html'}")
    failures |= run_cells(context, others, ledger, progress)
    progress.stop()
    measure_again(context, cells, time.monotonic() - began, ledger, progress)
    return failures


def check(experiment: Experiment, cfg: DictConfig) -> None:
    """Check the classes and limits of an experiment; raises ConfigError naming the key, or TestbedError."""
    check_components(experiment)
    limits = [experiment.testbed.memory_mb, *(one.daemon.get("memory_mb") for one in experiment.loaders.values())]
    if any(limit is not None for limit in limits) and (obstacles := memory_obstacles()):
        raise TestbedError("; ".join(obstacles))


def _start_testbed(experiment: Experiment, progress: RunProgress, cluster: Cluster | None = None) -> Testbed:
    own, regimes = experiment.testbed, list(experiment.regimes.values())
    options: Any = {"link_kind": own.link, "caches": own.caches, "congestion": own.congestion}
    if cluster is not None:
        progress.doing("reaching the other hosts")
        hosts = hosts_of_run(experiment, cluster.inventory)
        return HostsTestbed(cluster.run_id, cluster.inventory, hosts, regimes, **options, ssh_config=cluster.ssh_config)
    assert own.kind != "ssh", "the controller of several hosts starts the run on the lead"
    return open_testbed(own.kind, uuid4().hex[:8], regimes, **options)


def hosts_of_run(experiment: Experiment, inventory: Inventory) -> HostsOfRun:
    """Return the hosts of an inventory that take part; raises ConfigError for an experiment that they cannot run."""
    is_sharded = experiment.placement == "sharded"
    world_size = max(map(experiment.count_ranks, experiment.loaders), default=experiment.distributed.world_size)
    chosen = HostsOfRun.choose(inventory, world_size, sharded=is_sharded)
    far = next((name for name, regime in experiment.regimes.items() if not regime.is_local), None)
    if far is not None and chosen.storages[0] in chosen.computes and not is_sharded:
        raise ConfigError(
            f"inventory {inventory.source}: host {chosen.storages[0].name} both stores and computes, so regimes.{far} "
            "has no link between two hosts: use testbed=netns on it, or another storage host"
        )
    if experiment.testbed.memory_mb is not None and len(chosen.computes) > 1:
        names = ", ".join(host.name for host in chosen.computes)
        raise ConfigError(
            f"testbed.memory_mb={experiment.testbed.memory_mb:g}: ranks train on {names}, and only the lead can limit "
            "their memory: leave it out, or one host in the inventory's group compute"
        )
    return chosen


def _check_floor(experiment: Experiment, testbed: Testbed, progress: RunProgress) -> None:
    """Say which regimes are nearer than the link without delay; raises TestbedError for one that is out of reach."""
    if testbed.link is None or (floor_ms := testbed.link.floor_ms) is None:
        return
    for name, regime in experiment.regimes.items():
        if regime.is_local or floor_ms <= regime.rtt_ms:
            continue
        key, alone = f"regimes.{name}.rtt_ms={regime.rtt_ms:g}", f"the link without delay takes {floor_ms:.2g} ms"
        most_ms = regime.rtt_ms + allowed_rtt_ms(regime, experiment.checks)
        if floor_ms > most_ms:
            raise TestbedError(
                f"{key}: {alone}, expected at most {most_ms:.2g} ms: ask for {floor_ms:.2g} ms or more, or allow more "
                "with checks.rtt_ms"
            )
        progress.note(f"{key}: {alone}, and no delay is added")


def _start_agent(experiment: Experiment, folder: RunFolder, testbed: Testbed, ledger: Ledger) -> EnergyAgent:
    wall = testbed.wall_of(testbed.compute.host) or experiment.energy.wall
    return EnergyAgent(
        folder.energy,
        experiment.energy.model_copy(update={"wall": wall}),
        experiment.store,
        node=testbed.compute.host,
        run_id=testbed.run_id,
        on_restart=lambda message: ledger.append("note", message=message),
    )


def _hosts_provenance(testbed: Testbed, here: Provenance, agents: HostAgents, targets: Sequence[str]) -> Provenance:
    """Return the records of the other hosts of a run; refuses hosts with other code, whose figures would be mixed.

    Raises TestbedError, which names the host.
    """
    found: Provenance = {}
    for host, node in testbed.remotes.items():
        argv = [sys.executable, "-m", "harness.results.provenance", *targets]
        record = json.loads(node.run(argv, _PROVENANCE_S))
        code, own = (of["source"]["code_sha256"]["value"] for of in (record, here))
        if code != own:
            raise TestbedError(
                f"host {host} has other code than this lead ({code}, expected {own}): python -m harness.testbed up "
                "installs the same on all"
            )
        found[host] = make_field(record | {"sensors": agents.sensors.get(host)}, f"host {host}")
    return {"hosts": found} if found else {}


def _point_latest(folder: RunFolder, progress: RunProgress) -> None:
    if obstacle := folder.point_latest():
        progress.note(f"{obstacle}, so it does not lead to this run; resume={folder.folder.name} does")


def _open_data(experiment: Experiment, cfg: DictConfig, testbed: Testbed | None, progress: RunProgress) -> RunData:
    """Open the datasets where they are read from, and try each loader there."""
    cache = Path(cfg.cache_dir).expanduser()
    far = [] if testbed is None else [node for node in testbed.storages if node.is_remote]
    is_far = bool(far) and experiment.placement != "local" and any(not r.is_local for r in experiment.regimes.values())
    is_near = not is_far or experiment.placement != "remote" or any(r.is_local for r in experiment.regimes.values())
    beside = [] if testbed is None or not is_near else [node for node in testbed.computes if node.is_remote]
    others = list({node.host: node for node in (*(far if is_far else []), *beside)}.values())
    storages = 1 if testbed is None else len(testbed.storages)
    if others:
        plain = cast(dict[str, object], OmegaConf.to_container(cfg, resolve=True))
        data = open_data_on(others, plain, cache, progress.follow, storages)
    if is_near:
        near = open_data(experiment, cache, progress.follow, storages)
        if others and near.content_hash != data.content_hash:
            raise DatasetError(
                f"hosts {others[0].host} and {platform.node()} have different datasets ({data.content_hash} and "
                f"{near.content_hash}): expected the same files in {cache}, or in dataset.root"
            )
        if not others:
            try_loaders(experiment, near, progress.follow)
        data = near
    skipped = [path for one in data.each for path in one.handle.skipped]
    for path in skipped[:_SHOWN]:
        progress.note(f"skipped {path}: broken (dataset.on_error=skip)")
    if len(skipped) > _SHOWN:
        progress.note(f"skipped {len(skipped)} broken files in all; provenance.json lists them")
    return data


def _make_keys(experiment: Experiment, testbed: Testbed) -> dict[str, Keys]:
    """Make the run's keys in the run's own temporary folder."""
    modules = {loader.daemon["module"] for loader in experiment.loaders.values() if loader.secure}
    return {module: make_keys(module, testbed.compute.folder / f"keys-{n}") for n, module in enumerate(sorted(modules))}


def _targets(experiment: Experiment) -> list[str]:
    parts = (experiment.loaders, experiment.workloads, experiment.datasets)
    return [component.target for part in parts for component in part.values()]
