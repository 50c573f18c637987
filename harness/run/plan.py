"""From an experiment to its cells, in the order in which they run; pure."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any, Final

from harness.config.experiment import ENERGY_BESIDE
from harness.config.specs import Experiment, LoaderSpec
from harness.results.cells import Cell

_IDENTITY: Final = {"key", "target", "params"}
"""What the id of a cell knows of a component."""
_LOADER: Final = {"reads", "daemon", "secure", "environment"}
"""The same of a loader, beside that."""


def plan_cells(experiment: Experiment) -> tuple[Cell, ...]:
    """Return the cells: one block a repeat, a turn of every loader, in an order that the experiment's seed shuffles.

    Later cells run on a warmer machine, so a fixed order would favour one loader (pyperf, hyperfine). Every second
    block reverses the order of the one before it, so that of two loaders that take part in both each is the first one
    as often. A loader with fewer repeats than others takes part in blocks that are spread over the run. A loader that
    reads nothing in an epoch has the same bound at every distance, and runs in the nearest regime alone; one with
    `regimes` in these.
    """
    nearest = min(experiment.regimes, key=lambda regime: experiment.regimes[regime].rtt_ms)
    order = random.Random(experiment.seed)  # noqa: S311 - an order, not a secret
    cells: list[Cell] = []
    places: list[tuple[str, str, str]] = []
    for repeat in range(1, experiment.turns + 1):
        places = places[::-1] if repeat % 2 == 0 else _shuffle_places(experiment, order)
        cells += [
            _make_cell(experiment, loader, workload, regime, repeat)
            for workload, regime, loader in places
            if repeat in _spread_turns(experiment.count_repeats(loader, regime), experiment.turns)
            and _runs_in(experiment.loaders[loader], regime, is_nearest=regime == nearest)
        ]
    return tuple(cells)


def _shuffle_places(experiment: Experiment, order: random.Random) -> list[tuple[str, str, str]]:
    """Return workload, regime and loader of every cell of a block, the cells of a regime together."""
    places: list[tuple[str, str, str]] = []
    for workload in experiment.workloads:
        regimes = list(experiment.regimes)
        order.shuffle(regimes)
        for regime in regimes:
            loaders = list(experiment.loaders)
            order.shuffle(loaders)
            places += [(workload, regime, loader) for loader in loaders]
    return places


def _spread_turns(repeats: int, turns: int) -> set[int]:
    """Return in which of the run's turns a loader takes part: the first, the last and others between them."""
    return {1 + round(place * (turns - 1) / max(1, repeats - 1)) for place in range(repeats)}


def _runs_in(loader: LoaderSpec, regime: str, *, is_nearest: bool) -> bool:
    if loader.regimes:
        return regime in loader.regimes
    return is_nearest or loader.reads != "once"


def _make_cell(experiment: Experiment, loader: str, workload: str, regime: str, repeat: int) -> Cell:
    seed = experiment.seed + repeat - 1
    # A section without a list keeps the id that it had before there were any.
    listed = {"listed"} if experiment.loaders[loader].listed is not None else set()
    identity: dict[str, Any] = {
        "loader": experiment.loaders[loader].model_dump(include=_IDENTITY | _LOADER | listed),
        "workload": experiment.workloads[workload].model_dump(include=_IDENTITY),
        "regime": experiment.regimes[regime].model_dump(),
        "dataset": experiment.datasets[workload].model_dump(),
        "accelerator": experiment.accelerator.model_dump(),
        "energy": experiment.energy.model_dump(exclude=set(ENERGY_BESIDE)),
        "placement": experiment.placement,
        "distributed": {**experiment.distributed.model_dump(), "world_size": experiment.count_ranks(loader)},
        "epochs": experiment.epochs,
        "warmup_samples": experiment.warmup_samples,
        "repeat": repeat,
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return Cell(
        cell_id=f"{loader}-{workload}-{regime}-r{repeat}-{digest}",
        loader=loader,
        workload=workload,
        regime=regime,
        repeat=repeat,
        seed=seed,
    )
