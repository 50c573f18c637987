"""One loader in several settings: what its section's `sweep` stands for; pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import ConfigError

__all__ = ["Variant", "variants"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A loader in one setting."""

    key: str
    """Of the loader in plan, rows and cells: pytorch_num_workers_4."""
    base: str
    """Of the section that it comes from: pytorch."""
    setting: Mapping[str, Any]
    """The arguments that the sweep sets; empty for a loader without one."""
    section: Mapping[str, Any]
    """The loader's section with the setting in the place of the sweep."""


def variants(loaders: Mapping[str, Any]) -> dict[str, Variant]:
    """Return every loader that the config's `loaders` stand for, by key and in their order.

    `sweep: {num_workers: [1, 2]}` stands for two loaders; several arguments stand for all their combinations. Raises
    ConfigError naming the key.
    """
    found: dict[str, Variant] = {}
    for base, section in loaders.items():
        for variant in _of(str(base), section):
            if variant.key in found:
                raise ConfigError(f"loaders.{base}.sweep: makes {variant.key}, which is there already; rename one")
            found[variant.key] = variant
    return found


def _of(base: str, section: Any) -> list[Variant]:
    if not isinstance(section, Mapping) or section.get("sweep") is None:
        return [Variant(base, base, {}, section)]
    plain = {key: value for key, value in section.items() if key != "sweep"}
    sweep = section["sweep"]
    if not isinstance(sweep, Mapping) or not sweep:
        raise ConfigError(f"loaders.{base}.sweep={sweep!r}: expected such as {{num_workers: [1, 2]}}")
    for name, values in sweep.items():
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise ConfigError(f"loaders.{base}.sweep.{name}={values!r}: expected a list of different values")
    settings = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    return [Variant(_key(base, setting), base, setting, {**plain, **setting}) for setting in settings]


def _key(base: str, setting: Mapping[str, Any]) -> str:
    return "_".join([base, *(f"{name}_{value}" for name, value in setting.items())])
