"""Environments of their own, for loaders and daemons whose packages ask for other versions than this project's.

A loader's section names one by `environment`, and a daemon's module by `ENVIRONMENT`. The script `playbooks/NAME.sh`
makes it once, in the user's cache, and prints the path of its Python. A daemon's module names the server that it starts
by `SERVER`, which another such script finds or installs.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from harness.config.specs import Experiment
from harness.config.validation import unknown_key
from harness.errors import ConfigError, TestbedError
from harness.results.provenance import Provenance
from harness.testbed.hosts.inventory import PLAYBOOKS
from joulefeed.child import Child

_MAKE_S: Final = 1800.0
_DESCRIBE_S: Final = 120.0
_LINES: Final = 5
"""Of a script that failed, at the end of the message."""


def daemon_environment(module: str) -> str | None:
    """Return the environment that a daemon's module names; None where it runs in the harness's own."""
    return _named_by(module, "ENVIRONMENT")


def _named_by(module: str, attribute: str) -> str | None:
    try:
        name: str | None = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None  # check_daemon refuses it
    return name


def servers_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the names of the servers that daemons start, each with the config key that asks for it."""
    found: dict[str, str] = {}
    for loader in experiment.loaders.values():
        if loader.reads == "stream" and (name := _named_by(str(loader.daemon.get("module")), "SERVER")) is not None:
            found.setdefault(name, f"loaders.{loader.key}.daemon.module")
    return found


def environments_of(experiment: Experiment) -> Mapping[str, str]:
    """Return the names of the environments of an experiment, each with the config key that asks for it."""
    found: dict[str, str] = {}
    for loader in experiment.loaders.values():
        if loader.environment is not None:
            found.setdefault(loader.environment, f"loaders.{loader.key}.environment")
        if loader.reads == "stream" and (name := daemon_environment(str(loader.daemon.get("module")))) is not None:
            found.setdefault(name, f"loaders.{loader.key}.daemon.module")
    return found


def check_environments(experiment: Experiment) -> None:
    """Raise ConfigError, which names the key, for an environment that there is not, or that hosts do not have."""
    known = sorted(path.stem for path in PLAYBOOKS.glob("*.lock") if path.stem != "ansible")
    for name, key in environments_of(experiment).items():
        if name not in known:
            raise unknown_key(f"{key}={name}", known, "no such environment", "there are")
        if experiment.testbed.kind == "ssh":
            raise ConfigError(
                f"{key}: testbed=ssh: the hosts do not have the environment {name}; use testbed=netns, or leave the "
                f"loader out ('~{key.rpartition('.daemon')[0] or key.rpartition('.')[0]}')"
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
    environments = [(name, key, "environment", python_of) for name, key in environments_of(experiment).items()]
    wanted = servers_of(experiment) if experiment.testbed.kind != "ssh" else {}
    servers = [(name, key, "server", find_server) for name, key in wanted.items()]
    for name, key, what, make in [*environments, *servers]:
        doing(f"finding or making the {what} {name} (playbooks/{name}.sh)")
        try:
            make(name)
        except TestbedError as error:
            raise TestbedError(f"{key}: {error}") from error


@cache
def python_of(name: str | None) -> str:
    """Return the path of an environment's Python; the environment is made where it is not there.

    Without a name it is the harness's own Python. Raises TestbedError when the environment cannot be made.
    """
    return sys.executable if name is None else str(_make(name, "environment", Path.is_file))


@cache
def find_server(name: str) -> Path:
    """Return what `playbooks/NAME.sh` prints of a server, which it installs where it is not there.

    Raises TestbedError when the server cannot be had.
    """
    return _make(name, "server", Path.exists)


def _make(name: str, what: str, is_there: Callable[[Path], bool]) -> Path:
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
    made = Path(output.decode().strip())
    if child.process.returncode or not is_there(made):
        status = f"exit status {child.process.returncode}"
        raise TestbedError(f"playbooks/{script.name} made no {what}: {said or status}; {how}")
    return made


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
            found[f"{name}.{package}"] = {"value": version, "source": "importlib.metadata"}
    return {"environments": found} if found else {}
