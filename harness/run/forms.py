"""The forms in which daemons serve a dataset, such as the tables of a database: made once of its shards, and kept."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from harness.config.specs import EnergySpec, Experiment
from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import building, only_builder, storage_errors
from harness.datasets.placement import is_cut
from harness.errors import ConfigError
from harness.results.preparation import Preparation, load_preparation
from harness.run.conversion import ConversionMeter
from harness.run.environments import daemon_environment, python_of
from harness.system.disk import check_room
from harness.testbed.base import Node
from joulefeed.child import ChildError
from loaders.errors import LoaderError

_SLACK: Final = 1.25
_SLACK_BYTES: Final = 256 * 2**20
"""More than the shards' bytes that a form and its making take, such as the log of a database."""

_SILENCE_S: Final = 1800.0
"""Of a form that is made in an environment of its own, without a word."""

Prepare = Callable[[Path, Path, Callable[[int, int], None]], None]


@dataclass(frozen=True, slots=True)
class PreparedForm:
    """A dataset in the form that one module's daemon serves."""

    folder: Path
    preparation: Preparation | None = None
    """The cost of making it; None where that is not known."""


def forms_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the form of each daemon's module that has one, its `FORM`; the other daemons serve shards."""
    modules = {loader.daemon["module"] for loader in experiment.loaders.values() if loader.reads == "stream"}
    found = {}
    for module in sorted(modules):
        if (form := getattr(_import(module), "FORM", None)) is not None:
            found[module] = str(form)
    return found


def check_forms(experiment: Experiment, storages: int) -> None:
    """Raise ConfigError where several nodes have parts of a dataset and a daemon serves it in a form of its own."""
    for module in forms_of(experiment) if is_cut(experiment.placement, storages) else ():
        key = next(key for key, loader in experiment.loaders.items() if loader.daemon.get("module") == module)
        several = f"placement={experiment.placement}" if storages == 1 else f"{storages} storage nodes"
        raise ConfigError(
            f"loaders.{key}: {module} serves a whole dataset from one node; with {several} each node has a part: set "
            f"placement=remote and one storage node, or leave it out (~loaders.{key})"
        )


def open_forms(
    experiment: Experiment, handle: DatasetHandle, shards: Path, cache: Path, progress: Progress
) -> dict[str, PreparedForm]:
    """Return a dataset's forms by the daemons' modules, made of its shards unless they are in the cache.

    Raises DiskError when the cache cannot be written or lacks room, and what the modules raise, a LoaderError.
    """
    return {
        module: _open(module, form, handle, shards, cache, progress, experiment.energy)
        for module, form in forms_of(experiment).items()
    }


def _open(
    module: str, form: str, handle: DatasetHandle, shards: Path, cache: Path, progress: Progress, energy: EnergySpec
) -> PreparedForm:
    # The name of the shards' folder has the hash of their content.
    target = cache / "forms" / f"{shards.name}-{form}"
    with only_builder(target, progress):
        if target.exists():
            return PreparedForm(target, load_preparation(target))
        nbytes = sum(path.stat().st_size for path in shards.iterdir() if path.is_file())
        needed = int(_SLACK * nbytes) + _SLACK_BYTES
        check_room("cache_dir", target.parent, needed)
        meter = ConversionMeter(energy)
        environment = daemon_environment(module)
        prepare: Prepare = _import(module).prepare if environment is None else prepare_in(environment, module)
        what = f"preparing {handle.name} as {form}"
        with building(target) as partial, storage_errors(partial, needed):
            with meter.measure(nbytes):
                prepare(shards, partial, lambda done, total: progress(what, done, total))
            cost = meter.keep(handle, partial, form=form, module=module, raw_bytes=nbytes)
    return PreparedForm(target, cost)


def prepare_in(environment: str, module: str) -> Prepare:
    """Return a function that runs `python -m MODULE prepare` in an environment, which says how far it is on stdout."""

    def prepare(shards: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
        argv = [python_of(environment), "-m", module, "prepare", "--root", str(shards), "--out", str(folder)]
        node = Node("storage", "prepare")
        with node.start(argv, stdout=subprocess.PIPE, keep_stderr=True) as child:
            try:
                while (line := child.read_line(_SILENCE_S)) is not None:
                    progress(*json.loads(line)["progress"])
            except ChildError as error:
                if child.process.returncode == 0:
                    return
                raise LoaderError(f"{module} in the environment {environment} {error}") from error
            raise LoaderError(f"{module} in the environment {environment}: no progress for {_SILENCE_S:g} s")

    return prepare


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"daemon.module={module}: {error}") from error
