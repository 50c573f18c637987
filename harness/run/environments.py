"""Environments of their own, for loaders and daemons whose packages ask for other versions than this project's.

A loader's section names one by `environment`, and a daemon's module by `ENVIRONMENT`. The script `playbooks/NAME.sh`
makes it once, in the user's cache, and prints the path of its Python.
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

from energymon.system.child import Child
from harness.config.specs import Experiment
from harness.config.validation import unknown_key
from harness.errors import ConfigError, TestbedError
from harness.results.provenance import Provenance
from harness.testbed.inventory import PLAYBOOKS

_MAKE_S: Final = 1800.0
_DESCRIBE_S: Final = 120.0
_LINES: Final = 5
"""Of a script that failed, at the end of the message."""


def daemon_environment(module: str) -> str | None:
    """Return the environment that a daemon's module names; None where it runs in the harness's own."""
    try:
        name: str | None = getattr(importlib.import_module(module), "ENVIRONMENT", None)
    except ImportError:
        return None  # check_daemon refuses it
    return name


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
    """Make the environments that an experiment needs and that are not there; `doing` shows what lasts.

    Raises TestbedError, which names the key and the script, when one cannot be made.
    """
    for name, key in environments_of(experiment).items():
        doing(f"finding or making the environment {name} (playbooks/{name}.sh)")
        try:
            python_of(name)
        except TestbedError as error:
            raise TestbedError(f"{key}: {error}") from error


@cache
def python_of(name: str | None) -> str:
    """Return the path of an environment's Python; the environment is made where it is not there.

    Without a name it is the harness's own Python. Raises TestbedError when the environment cannot be made.
    """
    if name is None:
        return sys.executable
    script = PLAYBOOKS / f"{name}.sh"
    # A session's own packages are not the environment's.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with Child([str(script)], env=variables, stdin=subprocess.DEVNULL, keep_stderr=True) as child:
        output = child.finish(_MAKE_S)
        said = child.stderr_lines(_LINES)
    how = f"run playbooks/{script.name} by itself, with a network"
    if output is None:
        raise TestbedError(f"playbooks/{script.name}: no end within {_MAKE_S:g} s; {how}")
    python = output.decode().strip()
    if child.process.returncode or not Path(python).is_file():
        status = f"exit status {child.process.returncode}"
        raise TestbedError(f"playbooks/{script.name} made no environment: {said or status}; {how}")
    return python


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
