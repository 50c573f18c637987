"""Sweeps: one loader in several settings in one run (its section's `sweep`), and the runs of a --multirun; pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError


def variants(loaders: Mapping[str, object]) -> dict[str, object]:
    """Return the section of every loader that the config's `loaders` stand for, by key and in their order.

    `sweep: {num_workers: [1, 2]}` stands for two loaders; several arguments stand for all their combinations. A list
    such as `[{world_size: 1, num_workers: 4}, {world_size: 2, num_workers: 2}]` stands for one loader an entry, whose
    first argument is the one that is swept. Each section has its own `_key_`, the key of the config's section as
    `_base_`, and the swept arguments as `_setting_`. Raises ConfigError naming the key.
    """
    found: dict[str, object] = {}
    for base, section in loaders.items():
        if not isinstance(section, Mapping):
            found[base] = section  # the model refuses it
            continue
        plain = {key: value for key, value in section.items() if key != "sweep"}
        for setting, beside in _settings(base, section.get("sweep")):
            key = "_".join([base, *(f"{name}_{value}" for name, value in setting.items())])
            if key in found:
                raise ConfigError(f"loaders.{base}.sweep: makes {key}, which exists already; rename one")
            found[key] = {**plain, **beside, **setting, "_key_": key, "_base_": base, "_setting_": setting}
    return found


def _settings(base: str, sweep: object) -> list[tuple[dict[str, object], dict[str, object]]]:
    """Return for each loader the arguments that are swept, and those that change with them."""
    if sweep is None:
        return [({}, {})]
    if isinstance(sweep, list) and sweep and all(isinstance(entry, Mapping) and entry for entry in sweep):
        return [(dict([first]), dict(others)) for first, *others in (entry.items() for entry in sweep)]
    if not isinstance(sweep, Mapping) or not sweep:
        raise ConfigError(f"loaders.{base}.sweep={sweep!r}: expected such as {{num_workers: [1, 2]}}")
    for name, values in sweep.items():
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise ConfigError(f"loaders.{base}.sweep.{name}={values!r}: expected a list of different values")
    return [(dict(zip(sweep, values, strict=True)), {}) for values in itertools.product(*sweep.values())]


@dataclass(frozen=True, slots=True)
class SweepJob:
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


def changed(jobs: Sequence[SweepJob]) -> list[tuple[str, ...]]:
    """Return for each job the overrides that not all jobs have."""
    common = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs[1:]))
    return [tuple(override for override in job.overrides if override not in common) for job in jobs]
