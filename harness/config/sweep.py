"""Sweeps: one loader in several settings in one run (its section's `sweep`), and the runs of a --multirun; pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ConfigError

__all__ = ["Job", "Variant", "changed", "variants"]


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


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a --multirun, and how it ended."""

    overrides: tuple[str, ...]
    folder: Path | None
    """Its results; None where it ended before there were any."""
    status: int
    """What `python -m harness` would have exited with."""
    error: str
    """Why it ended early; empty where it did not."""

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal ended it."""
        return self.status > 128


def changed(jobs: Sequence[Job]) -> list[tuple[str, ...]]:
    """Return for each job the overrides that not all jobs have."""
    common = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs[1:]))
    return [tuple(override for override in job.overrides if override not in common) for job in jobs]
