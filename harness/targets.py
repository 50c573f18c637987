"""Classes named by import path in the config: found, checked against what the config gives them, and made."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from harness.errors import ConfigError

__all__ = ["check_arguments", "find", "instantiate", "takes"]


def find(target: str) -> Any:
    """Import the class or function of an import path; raises ConfigError naming it."""
    module_name, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={target}: cannot be imported ({error})") from error


def check_arguments(where: str, target: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that a section's class does not take, or a value unlike the key's default."""
    parameters = inspect.signature(find(target)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key, value in given.items():
        if key in parameters:
            _check_value(f"{where}.{key}", value, parameters[key].default)
        else:
            known = ", ".join(sorted(parameters))
            raise ConfigError(f"{where}.{key}: {target} takes no such key; it takes {known}")


def _check_value(where: str, value: Any, default: Any) -> None:
    for kind, accepted, word in (
        (bool, (bool,), "true or false"),
        (int, (int,), "a whole number"),
        (float, (int, float), "a number"),
        (str, (str,), "text"),
    ):
        if type(default) is kind:
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(f"{where}={value!r}: expected {word}, such as {default!r}")
            return


def takes(target: str, key: str) -> bool:
    """Return whether a section's class takes a key."""
    parameters = inspect.signature(find(target)).parameters
    return key in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def instantiate(target: str, params: Mapping[str, Any]) -> Any:
    """Make the object that a config section describes."""
    return find(target)(**params)
