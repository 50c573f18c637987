"""The classes that a config names: each is what it is named as, and takes the keys that it is given."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Final

from harness.config.specs import AcceleratorSpec, Component, Experiment, LoaderSpec
from harness.config.targets import check_arguments, check_parts, find, instantiate, takes
from harness.config.validation import unknown_key
from harness.datasets.placement import SPLIT
from harness.errors import ConfigError
from harness.run.daemon import check_daemon
from harness.run.environments import check_environments
from harness.workloads import Workload
from harness.workloads.accelerator import choose_kind
from loaders.errors import LoaderConfigError

# Given by the harness to every loader; the config may not set them.
_GIVEN: Final = {"samples", "endpoint", "endpoints", "keys", "events", "epochs"} | {
    "transform",
    "batch_size",
    "seed",
    "device",
}
_SHARE: Final = ("rank", "world_size", "remainder")
"""Arguments of a loader that can read the share of a rank."""
_LOADER: Final = ("epoch", "stats", "close")
_WORKLOAD: Final = ("model", "loss", "check", "example")
_MADE: Final = ("name", "batch_size", "input_size", "transform")
"""What a workload may well have only once it is made."""
_DATASET: Final = ("open",)


def check_components(experiment: Experiment) -> None:
    """Check every class of an experiment; raises ConfigError naming the key."""
    for loader in experiment.loaders.values():
        if not all(takes(loader.target, key) for key in loader.setting):
            check_arguments(f"loaders.{loader.base}.sweep", loader.target, loader.setting)
        check_loader(loader)
        if loader.reads == "stream":
            _check_stream(experiment, loader)
        _check_ranks(loader, experiment.distributed.world_size)
    check_environments(experiment)
    names = set()
    for key, workload in experiment.workloads.items():
        made = check_workload(workload)
        names.add(made.name)
        choose_kind(experiment.accelerator.model_dump(), made.name)
        check_dataset(experiment.dataset_key(key), experiment.datasets[key])
        _check_batch(key, made.batch_size, experiment.dataset_key(key), experiment.datasets[key])
        for loader in experiment.loaders.values():
            _check_transform(loader, key, made)
    _check_assumed(experiment.accelerator, names)


def _check_batch(key: str, batch_size: int, where: str, dataset: Component) -> None:
    """Refuse a batch larger than a dataset that is to be made, before it is made."""
    samples = dataset.params.get("samples")
    if isinstance(samples, int) and batch_size > samples:
        raise ConfigError(
            f"workloads.{key}.batch_size={batch_size} is larger than the dataset ({where}.samples={samples}): "
            f"expected at most {samples}"
        )


def _check_assumed(accelerator: AcceleratorSpec, names: Collection[str]) -> None:
    """Refuse an assumed step of a workload that nobody knows, which would go unused."""
    given = accelerator.seconds_per_sample
    if isinstance(given, Mapping):
        shipped = {path.name.removesuffix(".yaml") for path in resources.files("conf").joinpath("workload").iterdir()}
        for name in given:
            if name not in {*names, *shipped}:
                raise unknown_key(f"accelerator.seconds_per_sample.{name}", names, "no such workload", "there are")


def check_loader(loader: LoaderSpec) -> None:
    """Raise ConfigError naming the key for a class that is no loader, or keys that it does not take."""
    where = f"loaders.{loader.key}"
    for param in loader.params:
        if param in _GIVEN:
            raise ConfigError(f"{where}.{param}: is given by the harness; set it on the workload or the run")
    check_parts(where, loader.target, "loader", _LOADER)
    check_arguments(where, loader.target, loader.params)


def check_workload(workload: Component) -> Workload:
    """Make a workload; raises ConfigError naming the key for a class that is none, and for keys that it does not take.

    A wrong value is the class's own to refuse.
    """
    where = f"workloads.{workload.key}"
    check_parts(where, workload.target, "workload", _WORKLOAD)
    check_arguments(where, workload.target, workload.params)
    made = instantiate(workload.target, workload.params)
    missing = [part for part in (*_MADE, *_WORKLOAD) if not hasattr(made, part)]
    if missing:
        raise ConfigError(f"{where}._target_={workload.target}: is no workload: it lacks {', '.join(missing)}")
    checked: Workload = made
    return checked


def check_dataset(where: str, dataset: Component) -> None:
    """Raise ConfigError naming the key for a class that is no dataset, or keys that it does not take."""
    check_parts(where, dataset.target, "dataset", _DATASET)
    check_arguments(where, dataset.target, dataset.params)


def _check_stream(experiment: Experiment, loader: LoaderSpec) -> None:
    check_daemon(loader)
    for wanted, key, why in (
        (loader.secure, "keys", f"loaders.{loader.key}.secure=true"),
        (experiment.placement in SPLIT, "endpoints", f"placement={experiment.placement}"),
    ):
        if wanted and not takes(loader.target, key):
            raise ConfigError(f"{why}: {loader.target} takes no {key}")


def _check_ranks(loader: LoaderSpec, world_size: int) -> None:
    """Refuse a loader that cannot read a rank's share, and an imbalance of a single rank."""
    where = f"loaders.{loader.key}"
    if world_size == 1:
        if loader.params.get("imbalance"):
            raise ConfigError(f"{where}.imbalance: there is one rank; set distributed.world_size=2 or more")
        return
    for key in _SHARE:
        if key in loader.params:
            raise ConfigError(f"{where}.{key}: is given by the harness where there are several ranks; leave it out")
    missing = [key for key in _SHARE if not takes(loader.target, key)]
    found = find(loader.target)
    if inspect.isclass(found) and not hasattr(found, "__len__"):
        missing.append("__len__")
    if missing:
        raise ConfigError(
            f"distributed.world_size={world_size}: {where} ({loader.target}) cannot read a rank's share: it has no "
            f"{', '.join(missing)}; leave it out ('~{where}'), or see docs/extending.md"
        )


def _check_transform(loader: LoaderSpec, key: str, workload: Workload) -> None:
    """Ask a loader's class, if it has a `check_transform`, whether it can run a workload's pipeline as it is set."""
    check = getattr(find(loader.target), "check_transform", None)
    if check is None:
        return
    try:
        check(workload.transform, **loader.params)
    except LoaderConfigError as error:
        raise ConfigError(f"loaders.{loader.key} with workloads.{key}: {error}") from error
