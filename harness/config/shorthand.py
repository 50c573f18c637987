"""The command line's arguments in the form that Hydra takes, with the shorthand for an experiment's one workload.

`workload=NAME` and `workload.key=value` (`+workload.key=value`) stand for keys of `workloads`.
"""

from __future__ import annotations

from argparse import ArgumentError, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra._internal.utils import get_args_parser  # its only list of its own flags
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness.errors import ConfigError

__all__ = ["Arguments", "expand", "own_folder", "split"]

_KEYS = ("workload.", "+workload.", "++workload.")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, parted into Hydra's flags and the overrides."""

    flags: tuple[str, ...]
    """With their values, in their order: --multirun, --cfg job."""
    overrides: tuple[str, ...]
    read: Namespace
    """What the flags say, as Hydra reads them."""


def split(argv: Sequence[str]) -> Arguments:
    """Part the arguments, which may stand in any order; raises ConfigError for a flag that is not there.

    Hydra itself takes no override behind a flag that follows another override.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    parser.allow_abbrev = False  # --experiment=NAME is no --experimental-rerun
    try:
        read, unknown = parser.parse_known_intermixed_args(list(argv))
    except ArgumentError as error:
        raise ConfigError(f"{error}; --hydra-help lists the flags") from error
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: no such flag; an override has no dashes (key=value), --hydra-help lists flags"
        )
    overrides = list(read.overrides)
    flags = []
    for argument in argv:
        if argument in overrides:
            overrides.remove(argument)
        else:
            flags.append(argument)
    return Arguments(tuple(flags), tuple(read.overrides), read)


def expand(arguments: Arguments) -> list[str]:
    """Return the arguments, flags first, with each workload shorthand written out."""
    given = list(arguments.overrides)
    short = [a for a in given if a.startswith(("workload=", *_KEYS))]
    if not short:
        return [*arguments.flags, *given]
    rest = [a for a in given if a not in short]
    folder, _ = own_folder(arguments.flags)
    try:
        with initialize_config_module("conf", version_base="1.3"):
            cfg = compose("config", overrides=[*folder, *_first_job(rest)])
    except (HydraException, OmegaConfBaseException):
        return [*arguments.flags, *given]  # Hydra itself says what is wrong
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
            if "," in name or "(" in name:
                both = " ".join(f"+workload@workloads.{one}={one}" for one in name.split(","))
                raise ConfigError(f"{argument}: one run takes several workloads at once: {both} '~workloads.{key}'")
            if name != key:
                written += [f"~workloads.{key}", f"+workload@workloads.{name}={name}"]
                key = name
    written += [a.replace("workload.", f"workloads.{key}.", 1) for a in short if a.startswith(_KEYS)]
    return [*arguments.flags, *rest, *written]


def _first_job(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep's first job; of a single run, its own."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [
        f"{one.get_key_element()}={next(one.sweep_string_iterator())}" if one.is_discrete_sweep() else given
        for one, given in zip(parsed, overrides, strict=True)
    ]


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
