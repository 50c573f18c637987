"""Makes what loaders need before a run: their environments and servers, and datasets in the forms of their daemons.

A loader's section names an environment of its own by `environment`, and a daemon's module by `ENVIRONMENT`, where its
packages ask for other versions than this project's. The script `playbooks/NAME.sh` makes it once, in the user's cache,
and prints the path of its Python. A daemon's module names the server that it starts by `SERVER`, which another such
script finds or installs, and the form in which it serves a dataset, such as the tables of a database, by `FORM`: made
once of the shards by its `prepare`, and kept.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final

from energymon import EnergyError, Window
from harness.config.specs import EnergySpec, Experiment, StoreSpec
from harness.config.validation import unknown_key
from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import building, only_builder, storage_errors
from harness.datasets.placement import is_cut
from harness.errors import ConfigError, HarnessError, TestbedError
from harness.results.files import write_json
from harness.results.preparation import PREPARATION, Preparation, load_preparation
from harness.results.provenance import Provenance, make_field
from harness.run.energy_agent import EnergyAgent
from harness.system.disk import check_room
from harness.system.procfs import cpu_s
from harness.testbed.base import Node
from harness.testbed.hosts.inventory import PLAYBOOKS
from joulefeed.child import Child, ChildError
from loaders.errors import LoaderError

MIN_BYTES: Final = 32 * 2**20
"""Fewer bytes are converted within a few ticks of the sensors."""
_MAKE_S: Final = 1800.0
_DESCRIBE_S: Final = 120.0
_SILENCE_S: Final = 1800.0
"""Of a form that is made in an environment of its own, without a word."""
_LINES: Final = 5
"""Of a script that failed, at the end of the message."""
_SLACK: Final = 1.25
_SLACK_BYTES: Final = 256 * 2**20
"""More than the shards' bytes that a form and its making take, such as the log of a database."""

Prepare = Callable[[Path, Path, Callable[[int, int], None]], None]


def module_of(name: object) -> ModuleType:
    """Import a daemon's module; raises ConfigError where that fails."""
    try:
        return importlib.import_module(str(name))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"daemon.module={name}: {error}") from error


def daemon_environment(module: str) -> str | None:
    """Return the environment that a daemon's module names; None where it runs in the harness's own."""
    name: str | None = getattr(module_of(module), "ENVIRONMENT", None)
    return name


def _named_by_daemons(experiment: Experiment, attribute: str) -> dict[str, str]:
    """Return what the modules of an experiment's daemons name by an attribute, each with the key of the first one."""
    found: dict[str, str] = {}
    for loader in experiment.loaders.values():
        if loader.reads == "stream" and (name := getattr(module_of(loader.daemon["module"]), attribute, None)):
            found.setdefault(str(name), f"loaders.{loader.key}.daemon.module")
    return found


def environments_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the names of the environments of an experiment, each with the config key that asks for it."""
    named = {one.environment: f"loaders.{one.key}.environment" for one in experiment.loaders.values()}
    return {name: key for name, key in named.items() if name} | _named_by_daemons(experiment, "ENVIRONMENT")


def servers_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the names of the servers that daemons start, each with the config key that asks for it."""
    return _named_by_daemons(experiment, "SERVER")


def check_environments(experiment: Experiment) -> None:
    """Raise ConfigError, which names the key, for an environment that there is not, or that hosts do not have."""
    known = sorted(path.stem for path in PLAYBOOKS.glob("*.lock") if path.stem != "ansible")
    for name, key in environments_of(experiment).items():
        if name not in known:
            raise unknown_key(f"{key}={name}", known, "no such environment", "there are")
        if experiment.testbed.kind == "ssh":
            raise ConfigError(
                f"{key}: testbed=ssh: the hosts do not have the environment {name}; use testbed=netns, or leave the "
                f"loader out ('~{'.'.join(key.split('.')[:2])}')"
            )
        if not (PLAYBOOKS.parent / "pyproject.toml").exists():
            # Its search path would lead to the packages beside the installed one.
            raise ConfigError(f"{key}: the environment {name} needs a checkout of joulefeed, and this is a package")


def make_environments(experiment: Experiment, doing: Callable[[str], None]) -> None:
    """Make the environments and servers that an experiment needs and that are not there; `doing` shows what lasts.

    Servers are installed before they are first started, because that may be while the cost of preparing a dataset is
    measured. Those of other hosts are not.

    Raises TestbedError, which names the key and the script, when one cannot be made.
    """
    servers = servers_of(experiment) if experiment.testbed.kind != "ssh" else {}
    for name, key in [*environments_of(experiment).items(), *servers.items()]:
        doing(f"finding or making {name} (playbooks/{name}.sh)")
        try:
            find_or_make(name)
        except TestbedError as error:
            raise TestbedError(f"{key}: {error}") from error


def python_of(name: str | None) -> str:
    """Return the path of an environment's Python, or without a name of the harness's own.

    Raises TestbedError as `find_or_make`, and where the path is no file.
    """
    if name is None:
        return sys.executable
    if not (python := find_or_make(name)).is_file():
        raise TestbedError(f"playbooks/{name}.sh printed {python}: expected the path of a Python")
    return str(python)


@cache
def find_or_make(name: str) -> Path:
    """Return the path that `playbooks/NAME.sh` prints: of an environment's Python, or of a server.

    The script makes or installs it where it is not there. Raises TestbedError when that fails.
    """
    script = PLAYBOOKS / f"{name}.sh"
    # A session's own packages are not the environment's.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with Child(
        [str(script)], env=variables, stdin=subprocess.DEVNULL, keep_stderr=True, group_killed_with_parent=True
    ) as child:
        output = child.finish(_MAKE_S)
        said = child.stderr_lines(_LINES)
    how = f"run playbooks/{script.name} by itself, with a network"
    if output is None:
        raise TestbedError(f"playbooks/{script.name}: no end within {_MAKE_S:g} s; {how}")
    printed = output.decode().strip()
    if child.process.returncode or not printed or not Path(printed).exists():
        status = f"exit status {child.process.returncode}, and {printed or 'no path'} printed"
        raise TestbedError(f"playbooks/{script.name} failed: {said or status}; {how}")
    return Path(printed)


def describe_environments(experiment: Experiment) -> Provenance:
    """Return the section `environments` of a run's provenance: the packages of each, by `NAME.PACKAGE`.

    Raises TestbedError when an environment does not list them.
    """
    found = {}
    for name in environments_of(experiment):
        argv = [python_of(name), "-m", "harness.results.provenance"]
        variables = os.environ | {"PYTHONPATH": str(PLAYBOOKS.parent)}
        with Child(argv, env=variables, stdin=subprocess.DEVNULL, keep_stderr=True) as child:
            output = child.finish(_DESCRIBE_S)
            said = child.stderr_lines(_LINES)
        if output is None or child.process.returncode:
            raise TestbedError(f"the environment {name} does not list its packages: {said or 'no answer'}")
        record = json.loads(output)
        found[f"{name}.python"] = record["packages"]["python"]
        for package, version in record["installed"]["packages"]["value"].items():
            found[f"{name}.{package}"] = make_field(version, "importlib.metadata", "declared")
    return {"environments": found} if found else {}


@dataclass(frozen=True, slots=True)
class PreparedForm:
    """A dataset in the form that one module's daemon serves."""

    folder: Path
    preparation: Preparation | None = None
    """The cost of making it; None where that is not known."""


def forms_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the form of each daemon's module that has one, its `FORM`; the other daemons serve shards."""
    modules = {loader.daemon["module"] for loader in experiment.loaders.values() if loader.reads == "stream"}
    forms = {module: getattr(module_of(module), "FORM", None) for module in sorted(modules)}
    return {module: str(form) for module, form in forms.items() if form is not None}


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
        module: _open_form(module, form, handle, shards, cache, progress, experiment.energy)
        for module, form in forms_of(experiment).items()
    }


def _open_form(
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
        prepare: Prepare = module_of(module).prepare if environment is None else prepare_in(environment, module)
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
        with Node("storage", "prepare").start(argv, stdout=subprocess.PIPE, keep_stderr=True) as child:
            try:
                while (line := child.read_line(_SILENCE_S)) is not None:
                    progress(*json.loads(line)["progress"])
            except ChildError as error:
                if child.process.returncode == 0:
                    return
                raise LoaderError(f"{module} in the environment {environment} {error}") from error
            raise LoaderError(f"{module} in the environment {environment}: no progress for {_SILENCE_S:g} s")

    return prepare


class ConversionMeter:
    """Measures what one conversion of a dataset costs, if there is one: seconds, CPU time, joules and bytes."""

    def __init__(self, energy: EnergySpec) -> None:
        # Idle power is part of what the conversion costs.
        self._energy = energy.model_copy(update={"idle_s": 0.0})
        self._seconds: float | None = None
        self._cpu_s = 0.0
        self._joules: float | None = None
        self._sources = ""

    @contextmanager
    def measure(self, nbytes: int) -> Iterator[None]:
        """Measure the block, which converts so many bytes. Joules of few bytes, or without sensors, stay unknown."""
        with ExitStack() as stack:
            edges = stack.enter_context(ExitStack())
            window = self._open_window(stack, edges) if nbytes >= MIN_BYTES else None
            before, began = cpu_s([os.getpid()]), time.monotonic()
            yield
            self._seconds, self._cpu_s = time.monotonic() - began, cpu_s([os.getpid()]) - before
            edges.close()
            if window is not None:
                with suppress(EnergyError):
                    sources = sorted(window.sources.items())
                    found = ";".join(f"{name}={one}" for name, every in sources for one in every)
                    self._joules, self._sources = window.joules, found

    def keep(
        self, handle: DatasetHandle, shards: Path, *, form: str = "", module: str = "", raw_bytes: int | None = None
    ) -> Preparation | None:
        """Return what the shards of a dataset cost, and store it beside them if they were made now.

        Shards that were converted to a form for a module are `raw_bytes`. None where nobody measured the cost when they
        were made. Raises OSError.
        """
        if self._seconds is None:
            return load_preparation(shards)
        found = Preparation(
            dataset=handle.name,
            samples=len(handle.samples),
            seconds=self._seconds,
            cpu_s=self._cpu_s,
            raw_bytes=int(handle.samples.sizes.sum()) if raw_bytes is None else raw_bytes,
            shard_bytes=sum(path.stat().st_size for path in shards.rglob("*") if path.is_file()),
            joules=self._joules,
            energy_source=self._sources,
            form=form,
            module=module,
        )
        write_json(shards / PREPARATION, found)
        return found

    def _open_window(self, stack: ExitStack, edges: ExitStack) -> Window | None:
        store = Path(stack.enter_context(TemporaryDirectory(prefix="joulefeed-conversion-")), "energy.sqlite")
        agent = EnergyAgent(store, self._energy, StoreSpec(), platform.node(), "conversion", lambda message: None)
        try:
            stack.enter_context(agent)
            return edges.enter_context(Window("conversion", agent=agent))
        except (HarnessError, EnergyError):
            return None
