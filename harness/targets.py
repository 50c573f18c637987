"""Classes named by import path in the config: found, checked against what the config gives them, and made."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import ConfigError

__all__ = ["check_arguments", "find", "instantiate"]


def find(target: str) -> Any:
    """Import the class or function of an import path; raises ConfigError naming it."""
    module_name, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={target}: cannot be imported ({error})") from error


def check_arguments(where: str, target: str, given: Iterable[str]) -> None:
    """Raise ConfigError when a config section names a key that its class does not take."""
    parameters = inspect.signature(find(target)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in given:
        if key not in parameters:
            known = ", ".join(sorted(parameters))
            raise ConfigError(f"{where}.{key}: {target} takes no such key; it takes {known}")


def instantiate(target: str, params: Mapping[str, Any]) -> Any:
    """Make the object that a config section describes."""
    return find(target)(**params)
