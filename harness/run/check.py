"""Refuses what a config names and no cell could use: first classes and keys, then by one trial of each loader.

The trial follows when the datasets are there. A value is refused by the class or the daemon that it is for.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from harness.cell.loader import try_loader
from harness.cell.messages import CellSpec
from harness.config.specs import AcceleratorSpec, ComponentSpec, Experiment, LoaderSpec
from harness.config.targets import check_arguments, check_parts, find, instantiate, takes
from harness.config.validation import unknown_key
from harness.datasets import Progress
from harness.datasets.placement import SPLIT
from harness.errors import CellError, ConfigError, HarnessError
from harness.run.daemon import check_daemon, make_keys, serving
from harness.run.datasets import RunData, check_batch
from harness.run.prepare import check_environments, python_of
from harness.testbed.base import LOOPBACK, Node
from harness.workloads import Workload
from harness.workloads.accelerator import choose_kind
from joulefeed.calls import CallError, call
from joulefeed.child import ChildError
from loaders.base import Samples
from loaders.errors import LoaderConfigError, SampleError

# Given by the harness to every loader; the config may not set them.
_GIVEN: Final = frozenset(
    {"samples", "endpoint", "endpoints", "keys", "events", "transform", "batch_size", "seed", "device"}
)
_SHARE: Final = ("rank", "world_size", "remainder")
"""Arguments of a loader that can read the share of a rank."""
_PARTS: Final = {
    "loader": ("epoch", "stats", "close"),
    "workload": ("model", "loss", "check", "example"),
    "dataset": ("open",),
}
_MADE: Final = ("name", "batch_size", "input_size", "transform")
"""What a workload may well have only once it is made."""
_TRIES: Final = 8
"""Samples that are tried where every loader leaves out those that fail."""
_TRIAL_S: Final = 180.0
"""For which a loader may be made in an environment of its own, whose packages are imported first."""


def check_components(experiment: Experiment) -> None:
    """Check every class of an experiment and the keys that it is given; raises ConfigError naming the key."""
    for loader in experiment.loaders.values():
        setting = {key: value for key, value in loader.setting.items() if key != "world_size"}
        if not all(takes(loader.target, key) for key in setting):
            check_arguments(f"loaders.{loader.base}.sweep", loader.target, setting)
        check_loader(loader)
        if loader.reads == "stream":
            _check_stream(experiment, loader)
        _check_ranks(loader, experiment.count_ranks(loader.key))
    check_environments(experiment)
    names = set()
    for key, workload in experiment.workloads.items():
        made = check_workload(workload)
        names.add(made.name)
        choose_kind(experiment.accelerator.model_dump(), made.name)
        where, dataset = experiment.dataset_key(key), experiment.datasets[key]
        check_dataset(where, dataset)
        if isinstance(samples := dataset.params.get("samples"), int):
            # Before the dataset is made, which may last.
            check_batch(key, made.batch_size, samples, f"{where}.samples={samples}")
        for loader in experiment.loaders.values():
            _check_transform(loader, key, made)
    _check_assumed(experiment.accelerator, names)


def _check_assumed(accelerator: AcceleratorSpec, names: Collection[str]) -> None:
    """Refuse an assumed step of a workload that nobody knows, which would go unused."""
    given = accelerator.seconds_per_sample
    if isinstance(given, Mapping):
        shipped = {path.name.removesuffix(".yaml") for path in resources.files("conf").joinpath("workload").iterdir()}
        for name in given:
            if name not in {*names, *shipped}:
                raise unknown_key(f"accelerator.seconds_per_sample.{name}", names, "no such workload", "there are")


def check_loader(loader: LoaderSpec) -> None:
    """Raise ConfigError naming the key for a class that is no loader, or keys that it does not take."""
    for param in loader.params:
        if param in _GIVEN:
            raise ConfigError(
                f"loaders.{loader.key}.{param}: is given by the harness; set it on the workload or the run"
            )
    _check_class(f"loaders.{loader.key}", loader, "loader")


def check_workload(workload: ComponentSpec) -> Workload:
    """Make a workload; raises ConfigError naming the key for a class that is none, and for what it does not take."""
    where = f"workloads.{workload.key}"
    _check_class(where, workload, "workload")
    made = instantiate(workload.target, workload.params)
    missing = [part for part in (*_MADE, *_PARTS["workload"]) if not hasattr(made, part)]
    if missing:
        raise ConfigError(f"{where}._target_={workload.target}: is no workload: it lacks {', '.join(missing)}")
    checked: Workload = made
    return checked


def check_dataset(where: str, dataset: ComponentSpec) -> None:
    """Raise ConfigError naming the key for a class that is no dataset, and for what it does not take."""
    _check_class(where, dataset, "dataset")
    try:
        instantiate(dataset.target, dataset.params)
    except ConfigError as error:  # the class does not know where its section stands
        raise ConfigError(f"{where}.{str(error).removeprefix('dataset.')}") from error


def _check_class(where: str, component: ComponentSpec, what: str) -> None:
    check_parts(where, component.target, what, _PARTS[what])
    check_arguments(where, component.target, component.params)


def _check_stream(experiment: Experiment, loader: LoaderSpec) -> None:
    check_daemon(loader)
    for wanted, key, why in (
        (loader.secure, "keys", f"loaders.{loader.key}.secure=true"),
        (experiment.placement in SPLIT, "endpoints", f"placement={experiment.placement}"),
    ):
        if wanted and not takes(loader.target, key):
            raise ConfigError(f"{why}: {loader.target} takes no {key}")


def _check_ranks(loader: LoaderSpec, world_size: int) -> None:
    """Refuse a loader that cannot read a rank's share, and an imbalance of a single rank."""
    where = f"loaders.{loader.key}"
    if world_size == 1:
        if loader.params.get("imbalance"):
            raise ConfigError(f"{where}.imbalance: there is one rank; set distributed.world_size=2 or more")
        return
    for key in _SHARE:
        if key in loader.params:
            raise ConfigError(f"{where}.{key}: is given by the harness where there are several ranks; leave it out")
    missing = [key for key in _SHARE if not takes(loader.target, key)]
    found = find(loader.target)
    if inspect.isclass(found) and not hasattr(found, "__len__"):
        missing.append("__len__")
    if missing:
        raise ConfigError(
            f"distributed.world_size={world_size}: {where} ({loader.target}) cannot read a rank's share: it has no "
            f"{', '.join(missing)}; leave it out ('~{where}'), or see docs/extending.md"
        )


def _check_transform(loader: LoaderSpec, key: str, workload: Workload) -> None:
    """Ask a loader's class, if it has a `check_transform`, whether a workload can be trained on what it yields."""
    check = getattr(find(loader.target), "check_transform", None)
    if check is None:
        return
    try:
        check(workload.transform, **_tried(loader).params)
    except LoaderConfigError as error:
        raise ConfigError(f"loaders.{loader.key} with workloads.{key}: {error}") from error


def _tried(loader: LoaderSpec) -> LoaderSpec:
    """Return a section that its class can be made with, though how many files it reads at once is still to be found."""
    return loader.read_with(1) if loader.finds_readers else loader


def try_loaders(experiment: Experiment, data: RunData, progress: Progress) -> None:
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
                    stream = stack.enter_context(tried_daemon(loader, one.served_to(loader)))
                for key, workload in workloads.items():
                    if data.by_workload[key] is one:
                        _try(experiment, loader, key, workload, one.handle.samples, stream)
    progress("checking the loaders", len(experiment.loaders), len(experiment.loaders))


@contextmanager
def tried_daemon(loader: LoaderSpec, served: Path) -> Iterator[tuple[str, Path | None]]:
    """Run a loader's daemon over a folder on this host; yields its endpoint, and the client's keys where it has some.

    Raises ConfigError with the daemon's message where it does not start.
    """
    module = loader.daemon["module"]
    with TemporaryDirectory(prefix="joulefeed-trial-") as name, ExitStack() as stack:
        folder = Path(name)
        keys = make_keys(module, folder / "keys") if loader.secure else None
        options = {**loader.daemon, "port": 0}
        serve = serving(Node("storage", "trial"), LOOPBACK, served, options, folder / "log", keys=keys)
        try:
            daemon = stack.enter_context(serve)
        except CellError as error:
            raise ConfigError(f"loaders.{loader.key}.daemon: {error}") from error
        yield daemon.endpoint, None if keys is None else keys.client


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
    # They import torch, which a lead whose data is on other hosts can do without.
    from loaders.pipeline import sample_error
    from loaders.pipeline.callables import as_pipeline

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


def _try(
    experiment: Experiment,
    loader: LoaderSpec,
    key: str,
    workload: Workload,
    samples: Samples,
    stream: tuple[str, Path | None] | None,
) -> None:
    few = min(experiment.warmup_samples or workload.batch_size, len(samples))
    with TemporaryDirectory(prefix="joulefeed-trial-") as folder:
        samples_file = Path(folder) / "samples.parquet"
        samples.first(few).save(samples_file)
        spec = CellSpec(
            cell_id="trial",
            out=Path(folder),
            loader=_tried(loader),
            workload=experiment.workloads[key],
            accelerator=experiment.accelerator,
            samples=samples_file,
            data_root=samples.root,
            endpoints=[stream[0]] if stream else [],
            keys=stream[1] if stream else None,
            seed=experiment.seed,
            warmup_samples=few,
            energy_store=Path(folder) / "energy.sqlite",
        )
        refused = try_loader(spec, workload) if loader.environment is None else _try_there(spec, loader.environment)
    if refused is not None:
        raise ConfigError(f"loaders.{loader.key} with workloads.{key}: {refused}")


def _try_there(spec: CellSpec, environment: str) -> str | None:
    """Try a loader in its own environment; return why it cannot be made."""
    argv = [python_of(environment), "-m", "harness.cell.loader"]
    node = Node("compute", "trial")
    with node.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, keep_stderr=True) as child:
        try:
            refused = call(child, "try_loader", timeout_s=_TRIAL_S, spec=spec.to_json().decode())
        except (CallError, ChildError) as error:
            return f"its trial in the environment {environment} {error}"
    return None if refused is None else str(refused)
