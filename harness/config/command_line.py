"""From the arguments of a command to the config that Hydra composes of them, once.

`workload=NAME` and `workload.key=value` (`+workload.key=value`) stand for keys of an experiment's one workload.
"""

from __future__ import annotations

import copy
from argparse import ArgumentError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.utils import get_args_parser  # Hydra has no other list of its flags
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.config.hydra_errors import to_config_error
from harness.errors import ConfigError

_SHORT = ("workload.", "+workload.", "++workload.")
_COMPOSE_FLAGS = frozenset({"overrides", "config_dir"})
"""What Hydra's parser reads that needs no more of Hydra than to compose."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, parted into Hydra's flags and the overrides."""

    flags: tuple[str, ...]
    """With their values, in their order: --multirun, --cfg job."""
    overrides: tuple[str, ...]
    read: Namespace
    """What the flags say, as Hydra reads them."""

    @property
    def needs_hydra_main(self) -> bool:
        """Whether a flag asks Hydra for more than one composed config: to sweep, or only to show something."""
        plain = get_args_parser().parse_args([])
        return any(value != getattr(plain, key) for key, value in vars(self.read).items() if key not in _COMPOSE_FLAGS)

    @property
    def folder(self) -> Path | None:
        """The folder of --config-dir; raises ConfigError when it does not exist."""
        if self.read.config_dir is None:
            return None
        folder = Path(self.read.config_dir)
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={folder}: expected a folder of configs, such as one with workload/")
        return folder.absolute()


def split(argv: Sequence[str]) -> Arguments:
    """Part the arguments, which may stand in any order; raises ConfigError for a flag that does not exist.

    Hydra itself takes no override behind a flag that follows another override.
    """
    try:
        parser = get_args_parser()
        parser.exit_on_error = parser.allow_abbrev = False  # --experiment=NAME is no --experimental-rerun
        read, unknown = parser.parse_known_intermixed_args(list(argv))
    except ArgumentError as error:
        raise ConfigError(f"{error}; --help shows what can be given") from error
    except ValueError as error:  # Python 3.14 looks into a help that is no text in Hydra 1.3
        raise ConfigError(f"Hydra cannot start ({error}); run experiments with Python 3.11 to 3.13") from error
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such flag; an override has no dashes (key=value); --help shows all flags")
    left = list(read.overrides)
    flags = []
    for argument in argv:
        if argument in left:
            left.remove(argument)
        else:
            flags.append(argument)
    return Arguments(tuple(flags), tuple(read.overrides), read)


def compose_config(name: str, overrides: Sequence[str], folder: Path | None = None) -> DictConfig:
    """Compose a config of `conf/`, with the configs of a folder of the user's own beside them.

    Hydra reads and merges the files of `conf/` once in a process for each choice among them; values are set in a copy.

    Raises ConfigError naming the key that is wrong.
    """
    try:
        with _config_loader(folder) as loader:
            parsed = OverridesParser.create().parse_overrides(list(overrides))
            loader.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
            is_choice = [one.is_hydra_override() or loader.repository.group_exists(one.key_or_group) for one in parsed]
            choices = tuple(given for given, chooses in zip(overrides, is_choice, strict=True) if chooses)
            values = [one for one, chooses in zip(parsed, is_choice, strict=True) if not chooses]
            chosen = _compose_choices(name, choices) if folder is None else _compose_anew(name, choices)
            cfg = copy.deepcopy(chosen)
            loader._apply_overrides_to_config(values, cfg)
    except (HydraException, OmegaConfBaseException) as error:
        raise to_config_error(error) from error
    except ValueError as error:
        if not str(error).startswith("Config group override"):  # Hydra's own, of dataset=7
            raise
        raise to_config_error(error) from error
    HydraConfig.instance().set_config(cfg)  # for a config of the user's own that asks for ${hydra:...}
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _compose_anew(name: str, choices: Sequence[str]) -> DictConfig:
    return compose(name, overrides=list(choices), return_hydra_config=True)


_compose_choices = cache(_compose_anew)


@contextmanager
def _config_loader(folder: Path | None) -> Iterator[ConfigLoaderImpl]:
    with initialize_config_module("conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        if folder is not None:
            # Hydra expects its own schemas last.
            loader.config_search_path.prepend("command-line", f"file://{folder}", "schema")
            loader.repository = ConfigRepository(config_search_path=loader.config_search_path)
        yield loader


def expand(arguments: Arguments) -> list[str]:
    """Return the overrides with each workload shorthand written out; raises ConfigError where it can mean nothing."""
    given = list(arguments.overrides)
    short = [a for a in given if a.startswith(("workload=", *_SHORT))]
    if not short:
        return given
    rest = [a for a in given if a not in short]
    try:
        keys = _workloads(rest, arguments.folder)
    except (HydraException, OmegaConfBaseException):
        return given  # composing says what is wrong
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
    written += [a.replace("workload.", f"workloads.{key}.", 1) for a in short if a.startswith(_SHORT)]
    return [*rest, *written]


def _workloads(overrides: Sequence[str], folder: Path | None) -> list[str]:
    """Return the keys of the workloads of an experiment, from its defaults list: nothing is composed."""
    found: dict[str, None] = {}
    with _config_loader(folder) as loader:
        for default in loader.compute_defaults_list("config", _first_job(overrides), RunMode.RUN).defaults:
            package = (default.package or "").split(".")
            if package[0] == "workloads" and len(package) > 1:
                found[package[1]] = None
            if package == [""] and default.config_path is not None:
                loaded = loader.repository.load_config(default.config_path)
                section = None if loaded is None else OmegaConf.select(loaded.config, "workloads")
                found |= dict.fromkeys(map(str, section or ()))
    return [key for key in found if f"~workloads.{key}" not in overrides]


def _first_job(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep's first job; of a single run, its own."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [
        f"{one.get_key_element()}={next(one.sweep_string_iterator())}" if one.is_discrete_sweep() else given
        for one, given in zip(parsed, overrides, strict=True)
    ]
