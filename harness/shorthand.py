"""`workload=NAME` and `workload.key=value` (`+workload.key=value`) for an experiment that has one workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness.errors import ConfigError

__all__ = ["expand", "own_folder"]

_KEYS = ("workload.", "+workload.", "++workload.")


def expand(argv: list[str]) -> list[str]:
    """Return the arguments with each workload shorthand written out; the rest as they were."""
    short = [a for a in argv if a.startswith(("workload=", *_KEYS))]
    if not short:
        return argv
    rest = [a for a in argv if a not in short]
    folder, others = own_folder(rest)
    try:
        with initialize_config_module("conf", version_base="1.3"):
            cfg = compose("config", overrides=[*folder, *(a for a in others if not a.startswith("-"))])
    except (HydraException, OmegaConfBaseException):
        return argv  # Hydra itself says what is wrong
    keys = [str(key) for key in cfg.workloads]
    if len(keys) != 1:
        raise ConfigError(
            f"{short[0]}: the experiment has {len(keys)} workloads"
            + (f" ({', '.join(keys)}): say workloads.NAME… for one of them" if keys else "; choose +experiment=NAME")
        )
    key, written = keys[0], []
    for argument in short:
        if argument.startswith("workload="):
            name = argument.partition("=")[2]
            if name != key:
                written += [f"~workloads.{key}", f"+workload@workloads.{name}={name}"]
                key = name
    written += [a.replace("workload.", f"workloads.{key}.", 1) for a in short if a.startswith(_KEYS)]
    return rest + written


def own_folder(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what has `compose` look for configs in the folder of --config-dir too, and the arguments without it."""
    found: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in {"--config-dir", "-cd"}:
            folder = Path(value if equals else next(arguments, ""))
            if not folder.is_dir():
                raise ConfigError(f"--config-dir={folder}: expected a folder of configs, such as one with workload/")
            found = [f"hydra.searchpath=[file://{folder.absolute()}]"]
        else:
            rest.append(argument)
    return found, rest
