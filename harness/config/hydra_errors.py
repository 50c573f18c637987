"""Errors of Hydra and OmegaConf as one line each that names the key and what exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from hydra.errors import OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from harness.config.targets import parameters
from harness.config.validation import did_you_mean, quote_value, unknown_key
from harness.errors import ConfigError

_SECTIONS: Final = {"workload": "workloads", "loader": "loaders", "regime": "regimes"}
"""Groups of which an experiment has several, and the sections in which they stand."""


def to_config_error(error: Exception) -> ConfigError:
    """Return the error of composing a config as ours: the key, what exists there and the nearest spelling."""
    cause = error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.full_key:
        return _not_there(str(cause.full_key), cause.parent_node)
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(cause, OmegaConfBaseException):
        lines += [str(cause).splitlines()[0]]
    if match := re.search(r"Could not override '([^']*)'.*use \+(\S+)", str(error), re.DOTALL):
        return _no_such_default(match[1], match[2], error)
    if match := re.search(r"Could not find '(hydra/\w+|\w+)/([^']*)'", str(error)):
        group, name = match.groups()
        start = next((at for at, line in enumerate(lines) if line.startswith("Available options")), len(lines))
        names = [line for line in lines[start + 1 :] if re.fullmatch(r"[\w/.-]+", line)]
        there = f"there is no such {group}{did_you_mean(name, names)}; there are {', '.join(sorted(names))}"
        more = "; pip install 'joulefeed[cluster]' brings submitit_slurm" if group == "hydra/launcher" else ""
        return ConfigError(f"{group}={name}: {there}{more}")
    return ConfigError("; ".join(line for line in lines if "https://hydra.cc" not in line))


def _unreadable(override: str) -> ConfigError:
    """Return the error for an override that breaks Hydra's grammar."""
    key, equals, value = (part.strip() for part in override.partition("="))
    if not equals:
        advice = "expected key=value"
    elif not override.startswith(f"{key}="):
        advice = f"write it without spaces: {shlex.quote(f'{key}={value}')}"
    elif value[:1] in set("[{(\"'"):
        advice = "close every bracket and quote"
    else:
        advice = f"quote the value: {shlex.quote(f'{key}={quote_value(value)}')}"
    return ConfigError(f"{override}: cannot be read as key=value; {advice}")


def _no_such_default(group: str, given: str, error: Exception) -> ConfigError:
    """Return the error for a choice in a group of which the base config chooses nothing."""
    name = given.partition("=")[2]
    if group in _SECTIONS:
        there = re.search(r"Did you mean to override (\S+)\?", str(error))
        instead = f"; {there[1]}={name} replaces {there[1].rpartition('.')[2]}" if there else ""
        adds = f"+{group}@{_SECTIONS[group]}.{name}={name}"
        return ConfigError(f"{given}: an experiment may have several {_SECTIONS[group]}; {adds} adds one{instead}")
    return ConfigError(f"{given}: write it with a plus: +{given}")


def _not_there(full_key: str, parent: object) -> ConfigError:
    section, _, key = full_key.rpartition(".")
    known = [str(name) for name in parent] if isinstance(parent, DictConfig) else []
    target = parent.get("_target_") if isinstance(parent, Mapping | DictConfig) else None
    if not target:
        return unknown_key(full_key, known, have=f"{section or 'the experiment'} has")
    taken = parameters(str(target))
    if taken is None or key in taken:
        return ConfigError(f"{full_key}: the config does not set it yet; add it with a plus: +{full_key}=VALUE")
    return unknown_key(full_key, set(known) - {"_target_"} | taken, f"{target} takes no such key", f"{section} takes")
