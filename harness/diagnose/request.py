"""From the command line to what is to be diagnosed, composed and checked as the main command's experiments are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from harness.config.command_line import compose_config, split
from harness.config.experiment import experiment_from
from harness.config.specs import Component, LoaderSpec
from harness.config.validation import nearest
from harness.errors import ConfigError
from harness.run.components import check_dataset, check_loader, check_workload
from harness.system.disk import folder_of

__all__ = ["Request", "request_from", "spelled_out", "workload_datasets"]

_WORKLOAD, _LOADER = "resnet50", "pytorch"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be diagnosed, and how long that may take."""

    workload: Component
    loader: LoaderSpec
    dataset: Component
    accelerator: Mapping[str, Any]
    workers: tuple[int, ...]
    budget_s: float
    seed: int
    cache: Path
    results_dir: Path
    command: str


def workload_datasets() -> dict[str, str]:
    """Return the dataset that each workload reads unless another is asked for, by the names of their YAML files."""
    text = resources.files("conf").joinpath("diagnose.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)["diagnose"]["datasets"]
    return found


def request_from(argv: Sequence[str]) -> Request:
    """Compose and check what the arguments ask for; raises ConfigError naming the key."""
    arguments = split(argv)
    if arguments.needs_hydra_main:
        raise ConfigError(f"{arguments.flags[0]}: no such flag; --help shows what can be given")
    cfg = compose_config("diagnose", spelled_out(arguments.overrides), arguments.folder)
    if OmegaConf.is_dict(cfg.regimes):  # a link would be refused for another reason
        _check_alone("regimes", cfg.regimes, "local files, and so the regime local")
    experiment = experiment_from(cfg)
    for group in ("workloads", "loaders"):
        _check_alone(group, getattr(experiment, group), f"one of the {group}")
    (workload,), (loader,) = experiment.workloads.values(), experiment.loaders.values()
    dataset = experiment.datasets[workload.key]
    if loader.reads != "files":
        raise ConfigError(
            f"loader={loader.key}: is fed by a daemon; expected a loader that reads files, such as pytorch"
        )
    if experiment.accelerator.kind == "none":
        raise ConfigError(
            "accelerator=none: has no step to keep loading apart from; expected auto, cuda, cpu, emulated"
        )
    check_loader(loader)
    check_workload(workload)
    check_dataset("dataset", dataset)
    return Request(
        workload=workload,
        loader=loader,
        dataset=dataset,
        accelerator=experiment.accelerator.model_dump(),
        workers=_workers(cfg),
        budget_s=_budget_s(cfg),
        seed=experiment.seed,
        cache=folder_of("cache_dir", cfg.cache_dir),
        results_dir=folder_of("results_dir", cfg.results_dir),
        command=shlex.join(["python", "-m", "harness.diagnose", *argv]),
    )


def _check_alone(group: str, named: Iterable[object], one: str) -> None:
    names = [str(name) for name in named]
    if len(names) > 1:
        raise ConfigError(f"{group} {', '.join(names)}: a diagnosis is of {one} alone; leave out what is added")


def spelled_out(argv: Sequence[str]) -> list[str]:
    """Return the arguments as overrides of conf/diagnose.yaml: one workload, its dataset, and one loader."""
    chosen = {"workload": _WORKLOAD, "loader": _LOADER}
    rest: list[str] = []
    for argument in argv:
        group, equals, value = argument.partition("=")
        if equals and group in chosen:
            chosen[group] = value
        else:
            rest.append(argument)
    workload, loader = chosen["workload"], chosen["loader"]
    if not any(argument.partition("=")[0] == "dataset" for argument in rest):
        known = workload_datasets()
        if workload not in known:
            near = nearest(workload, known)
            meant = f" (did you mean {near}?)" if near else ""
            raise ConfigError(
                f"workload={workload}{meant}: no dataset is known for it: say dataset=NAME, "
                f"or add it to diagnose.datasets (known are {', '.join(known)})"
            )
        rest.append(f"dataset={known[workload]}")
    keys = {"workload.": f"workloads.{workload}.", "loader.": f"loaders.{loader}."}
    written = [
        next(
            (
                argument.replace(short, full, 1)
                for short, full in keys.items()
                if argument.lstrip("+").startswith(short)
            ),
            argument,
        )
        for argument in rest
    ]
    return [f"+workload@workloads.{workload}={workload}", f"+loader@loaders.{loader}={loader}", *written]


def _workers(cfg: DictConfig) -> tuple[int, ...]:
    if not OmegaConf.is_dict(cfg.diagnose):
        raise ConfigError(f"diagnose={cfg.diagnose!r}: expected a section with workers and budget_s")
    given = OmegaConf.to_container(cfg.diagnose.workers) if OmegaConf.is_list(cfg.diagnose.workers) else None
    good = isinstance(given, list) and given and all(type(count) is int and count >= 1 for count in given)
    if not good:
        raise ConfigError(
            f"diagnose.workers={cfg.diagnose.workers!r}: expected numbers of workers, 1 or more, such as [1,2,4]"
        )
    assert isinstance(given, list)
    return tuple(given)


def _budget_s(cfg: DictConfig) -> float:
    value = cfg.diagnose.budget_s
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 3600:
        raise ConfigError(f"diagnose.budget_s={value!r}: expected seconds of measuring, 1 to 3600")
    return float(value)
