"""Classes named by import path in the config: found, checked against what the config gives them, and made."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.config.validation import unknown_key
from harness.errors import ConfigError
from joulefeed.version import remedy


def find(target: str) -> Any:
    """Import the class or function of an import path; raises ConfigError naming it."""
    module_name, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={target}: cannot be imported ({error}){remedy(error)}") from error


def check_arguments(where: str, target: str, given: Iterable[str]) -> None:
    """Raise ConfigError for a key that a section's class does not take. Values are the class's own to refuse."""
    known = parameters(target)
    for key in given:
        if known is not None and key not in known:
            raise unknown_key(f"{where}.{key}", known, f"{target} takes no such key", "it takes")


def check_parts(where: str, target: str, what: str, parts: Sequence[str]) -> None:
    """Raise ConfigError for a class that is no loader, workload or dataset (`what`), for it lacks one of its parts.

    `parts` are names of methods and properties; abstract ones count as missing.
    """
    found = find(target)
    if not inspect.isclass(found):
        return  # a function has these parts only in its return value
    abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    missing = [part for part in parts if part in abstract or not hasattr(found, part)]
    if missing:
        kind = "is abstract and leaves out" if abstract else f"is no {what}: it lacks"
        raise ConfigError(
            f"{where}._target_={target}: {kind} {', '.join(missing)}; expected a class with {', '.join(parts)}"
        )


def parameters(target: str) -> frozenset[str] | None:
    """Return the keys that a section's class takes; None when it takes any."""
    found = inspect.signature(find(target)).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in found.values()) else frozenset(found)


def takes(target: str, key: str) -> bool:
    """Return whether a section's class takes a key."""
    known = parameters(target)
    return known is None or key in known


def instantiate(target: str, params: Mapping[str, object]) -> Any:
    """Make the object that a config section describes; raises ConfigError for a key too many or too few."""
    made = find(target)
    try:
        inspect.signature(made).bind(**params)
    except TypeError as error:
        check_arguments(target, target, params)
        raise ConfigError(f"_target_={target}: {error}") from error
    return made(**params)
