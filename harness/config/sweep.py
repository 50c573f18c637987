"""Sweeps: one loader in several settings in one run (its section's `sweep`), and the runs of a --multirun."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from harness.errors import ConfigError, TestbedError

_JOB_FILE: Final = "JOULEFEED_JOB"
"""Names the file in which a run says how it ended: that of a job which another process has started."""


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


class SweepFolder(Callback):
    """Hydra's callback that notes the folder of a --multirun, where jobs of other processes say how they ended."""

    path: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        """Note it; Hydra calls this before the first job."""
        SweepFolder.path = Path(config.hydra.sweep.dir)


def run_elsewhere(overrides: Sequence[str], configs: Path | None, sweep: Path, number: int) -> None:
    """Run a job in a process of its own, as a launcher such as submitit's wants it, and wait for it.

    The job may need to start again as root of a user namespace, which the process of a launcher cannot. `configs` is
    the user's --config-dir.
    """
    path = (sweep / f"job-{number:04d}.json").absolute()
    argv = [sys.executable, "-m", "harness", *overrides, *([] if configs is None else [f"--config-dir={configs}"])]
    status = subprocess.run(argv, env={**os.environ, _JOB_FILE: str(path)}, check=False).returncode
    if not path.exists():
        ended = status if status >= 0 else 128 - status
        _store(SweepJob(tuple(overrides), None, ended, "see the launcher's log"), path)


def tell_launcher(job: SweepJob) -> None:
    """Say how a run ended, where `run_elsewhere` asks for it."""
    if path := os.environ.get(_JOB_FILE):
        _store(job, Path(path))


def _store(job: SweepJob, path: Path) -> None:
    # default=str is for the folder.
    path.write_text(json.dumps(asdict(job), default=str))


def read_jobs(sweep: Path) -> list[SweepJob]:
    """Return the jobs of a sweep that ran elsewhere, in their order; raises TestbedError for a file that is damaged."""
    jobs = []
    for path in sorted(sweep.glob("job-*.json")):
        try:
            known = json.loads(path.read_text())
            folder = Path(known["folder"]) if known["folder"] else None
            jobs.append(SweepJob(tuple(known["overrides"]), folder, int(known["status"]), str(known["error"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TestbedError(f"{path}: does not say how its job ended ({error!r})") from error
    return jobs
