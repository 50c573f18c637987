"""What Hydra and OmegaConf say is wrong with an override, as one line that names the key and what there is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from harness.errors import ConfigError
from harness.keys import nearest, unknown_key
from harness.targets import parameters

__all__ = ["explained"]


def explained(error: Exception) -> ConfigError:
    """Return the error of composing a config as ours: the key, what exists there and the nearest spelling."""
    cause = error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.full_key:
        return _not_there(str(cause.full_key), cause.parent_node)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(cause, OmegaConfBaseException):
        lines += [str(cause).splitlines()[0]]
    if match := re.search(r"Could not find '(\w+)/([^']*)'", str(error)):
        group, name = match.groups()
        start = next((at for at, line in enumerate(lines) if line.startswith("Available options")), len(lines))
        names = [line for line in lines[start + 1 :] if re.fullmatch(r"[\w/.-]+", line)]
        near = nearest(name, names)
        meant = f" (did you mean {near}?)" if near else ""
        return ConfigError(f"{group}={name}: there is no such {group}{meant}; there are {', '.join(sorted(names))}")
    return ConfigError("; ".join(line for line in lines if "https://hydra.cc" not in line))


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
