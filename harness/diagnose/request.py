"""From the command line to a request, composed and checked as the main command's experiments are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import yaml
from omegaconf import OmegaConf
from pydantic import Field

from harness.config.command_line import compose_config, split
from harness.config.experiment import experiment_from
from harness.config.specs import AcceleratorSpec, ComponentSpec, LoaderSpec
from harness.config.validation import Section, did_you_mean, parse
from harness.errors import ConfigError
from harness.run.check import check_dataset, check_loader, check_workload
from harness.system.disk import folder_of

_USUAL: Final = {"workload": "resnet50", "loader": "pytorch"}


class _DiagnoseSection(Section):
    """The config's section `diagnose`."""

    workers: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        description="numbers of workers, 1 or more, such as [1,2,4]"
    )
    budget_s: float = Field(ge=1, le=3600, description="seconds of measuring, 1 to 3600")
    datasets: dict[str, str]


@dataclass(frozen=True, slots=True)
class DiagnosisRequest:
    """The parts to diagnose, and the time that this may take."""

    workload: ComponentSpec
    loader: LoaderSpec
    dataset: ComponentSpec
    accelerator: AcceleratorSpec
    workers: Sequence[int]
    budget_s: float
    seed: int
    cache: Path
    results_dir: Path
    command: str


def list_workload_datasets() -> dict[str, str]:
    """Return the dataset that each workload reads by default, by the names of their YAML files."""
    text = resources.files("conf").joinpath("diagnose.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)["diagnose"]["datasets"]
    return found


def make_request(argv: Sequence[str]) -> DiagnosisRequest:
    """Compose and check what the arguments ask for; raises ConfigError naming the key."""
    arguments = split(argv)
    if arguments.needs_hydra_main:
        raise ConfigError(f"{arguments.flags[0]}: no such flag; --help shows what can be given")
    cfg = compose_config("diagnose", spell_out(arguments.overrides), arguments.folder)
    if OmegaConf.is_dict(cfg.regimes):  # a link would be refused for another reason
        _check_alone("regimes", cfg.regimes, "local files, and so the regime local")
    experiment = experiment_from(cfg)
    for group in ("workloads", "loaders"):
        _check_alone(group, getattr(experiment, group), f"one of the {group}")
    (workload,), (loader,) = experiment.workloads.values(), experiment.loaders.values()
    dataset = experiment.datasets[workload.key]
    if loader.reads != "files":
        why = "is fed by a daemon" if loader.reads == "stream" else "reads nothing in an epoch"
        raise ConfigError(f"loader={loader.key}: {why}; expected a loader that reads files, such as pytorch")
    if experiment.accelerator.kind == "none":
        raise ConfigError("accelerator=none: has no step to compare loading with; expected auto, cuda, cpu, emulated")
    check_loader(loader)
    check_workload(workload)
    check_dataset("dataset", dataset)
    settings = parse(_DiagnoseSection, OmegaConf.to_container(cfg)["diagnose"], "diagnose")  # type: ignore[call-overload,index]
    return DiagnosisRequest(
        workload=workload,
        loader=loader,
        dataset=dataset,
        accelerator=experiment.accelerator,
        workers=settings.workers,
        budget_s=settings.budget_s,
        seed=experiment.seed,
        cache=folder_of("cache_dir", experiment.cache_dir),
        results_dir=folder_of("results_dir", experiment.results_dir),
        command=shlex.join(["python", "-m", "harness.diagnose", *argv]),
    )


def _check_alone(group: str, named: Iterable[object], one: str) -> None:
    names = [str(name) for name in named]
    if len(names) > 1:
        raise ConfigError(f"{group} {', '.join(names)}: a diagnosis is of {one} alone; leave the others out")


def spell_out(argv: Sequence[str], usual: Mapping[str, str] = _USUAL) -> list[str]:
    """Return the arguments as overrides of an experiment: one workload, its dataset, and one of each other group.

    `usual` has the groups with their defaults. Raises ConfigError for a workload without a known dataset.
    """
    chosen = dict(usual)
    rest: list[str] = []
    for argument in argv:
        group, equals, value = argument.partition("=")
        if equals and group in chosen:
            chosen[group] = value
        else:
            rest.append(argument)
    workload, known = chosen["workload"], list_workload_datasets()
    if not any(argument.startswith("dataset=") for argument in rest):
        if workload not in known:
            raise ConfigError(
                f"workload={workload}{did_you_mean(workload, known)}: no dataset is known for it: say "
                f"dataset=NAME, or add it to diagnose.datasets (known are {', '.join(known)})"
            )
        rest.append(f"dataset={known[workload]}")
    for group, name in chosen.items():
        rest = [
            argument.replace(f"{group}.", f"{group}s.{name}.", 1)
            if argument.lstrip("+").startswith(f"{group}.")
            else argument
            for argument in rest
        ]
    return [*(f"+{group}@{group}s.{name}={name}" for group, name in chosen.items()), *rest]
