"""The first steps of each cell, done once before the testbed starts, so that an error there fails no cell."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from harness.cell.messages import CellSpec
from harness.cell.trial import try_loader
from harness.config.specs import Experiment, LoaderSpec
from harness.config.targets import instantiate
from harness.datasets import Progress
from harness.errors import CellError, ConfigError, HarnessError
from harness.run.daemon import make_keys, serving
from harness.run.datasets import OpenData, RunData
from harness.run.environments import python_of
from harness.testbed.base import LOOPBACK, Node
from harness.workloads import Workload
from joulefeed.child import ChildError
from loaders.base import Samples
from loaders.errors import SampleError
from loaders.pipeline import sample_error
from loaders.pipelines.callables import as_pipeline

_TRIES: Final = 8
"""Samples that are tried where every loader leaves out those that fail."""
_TRIAL_S: Final = 180.0
"""For which a loader may be made in an environment of its own, whose packages are imported first."""


def dry_run(experiment: Experiment, data: RunData, progress: Progress) -> None:
    """Read a sample of each workload, start each daemon, and make each loader as for a cell's warm-up.

    Raises ConfigError naming the section, with the message of its class or daemon.
    """
    workloads = {key: instantiate(one.target, one.params) for key, one in experiment.workloads.items()}
    tries = _TRIES if all(one.params.get("on_error") == "skip" for one in experiment.loaders.values()) else 1
    for key, workload in workloads.items():
        _check_readable(experiment, key, workload, data.by_workload[key].handle.samples, tries)
    for done, loader in enumerate(experiment.loaders.values()):
        progress("checking the loaders", done, len(experiment.loaders))
        for one in data.each:
            with ExitStack() as stack:
                stream = None
                if loader.reads == "stream":
                    stream = stack.enter_context(dry_run_daemon(loader, one.served_to(loader)))
                for key, workload in workloads.items():
                    if data.by_workload[key] is one:
                        _make(experiment, loader, key, workload, one, stream)
    progress("checking the loaders", len(experiment.loaders), len(experiment.loaders))


@dataclass(frozen=True, slots=True)
class _Stream:
    endpoint: str
    keys: Path | None
    """Folder of the client's keys. None for a stream that is not encrypted."""


@contextmanager
def dry_run_daemon(loader: LoaderSpec, served: Path) -> Iterator[_Stream]:
    """Run a loader's daemon over a folder on this host; yields the endpoint and the keys for a loader.

    Raises ConfigError with the daemon's message where it does not start.
    """
    module = loader.daemon["module"]
    with TemporaryDirectory(prefix="joulefeed-dry-run-") as name, ExitStack() as stack:
        folder = Path(name)
        keys = make_keys(module, folder / "keys") if loader.secure else None
        options = {**loader.daemon, "port": 0}
        serve = serving(Node("storage", "dry-run"), LOOPBACK, served, options, folder / "log", keys=keys)
        try:
            daemon = stack.enter_context(serve)
        except CellError as error:
            raise ConfigError(f"loaders.{loader.key}.daemon: {error}") from error
        yield _Stream(daemon.endpoint, None if keys is None else keys.client)


def _check_readable(experiment: Experiment, key: str, workload: Workload, samples: Samples, tries: int) -> None:
    failures = []
    for sample_id in range(min(tries, len(samples))):
        failure = _failure(workload, samples, sample_id)
        if failure is None:
            return
        failures.append(failure)
    raise ConfigError(
        f"workloads.{key} cannot be trained on its dataset ({experiment.dataset_key(key)}): {failures[0]}; choose a "
        "dataset of its kind"
    ) from failures[0]


def _failure(workload: Workload, samples: Samples, sample_id: int) -> SampleError | None:
    pipeline, stage = as_pipeline(workload.transform), "read"
    try:
        encoded = pipeline.read(samples, sample_id)
        stage = "decode"
        pipeline.decode(encoded, samples, sample_id)
    except HarnessError:
        raise
    except Exception as error:  # noqa: BLE001 - a pipeline may be the user's; what it raises is the refusal
        return sample_error(samples, sample_id, stage, error)
    return None


def _make(
    experiment: Experiment, loader: LoaderSpec, key: str, workload: Workload, data: OpenData, stream: _Stream | None
) -> None:
    samples = data.handle.samples
    few = min(experiment.warmup_samples or workload.batch_size, len(samples))
    with TemporaryDirectory(prefix="joulefeed-dry-run-") as folder:
        samples_file = Path(folder) / "samples.parquet"
        samples.first(few).save(samples_file)
        spec = CellSpec(
            cell_id="dry-run",
            out=Path(folder),
            loader=loader,
            workload=experiment.workloads[key],
            accelerator=experiment.accelerator,
            samples=samples_file,
            data_root=samples.root,
            endpoints=[stream.endpoint] if stream else [],
            keys=stream.keys if stream else None,
            seed=experiment.seed,
            warmup_samples=few,
            energy_store=Path(folder) / "energy.sqlite",
        )
        refused = try_loader(spec, workload) if loader.environment is None else _try_there(spec, loader.environment)
    if refused is not None:
        raise ConfigError(f"loaders.{loader.key} with workloads.{key}: {refused}")


def _try_there(spec: CellSpec, environment: str) -> str | None:
    """Try a loader in its own environment; return why it cannot be made."""
    argv = [python_of(environment), "-m", "harness.cell.trial"]
    node = Node("compute", "dry-run")
    with node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True) as child:
        try:
            child.send(spec.to_json() + b"\n")
            refused = child.ready(_TRIAL_S)["refused"]
        except ChildError as error:
            return f"its trial in the environment {environment} {error}"
    return None if refused is None else str(refused)
