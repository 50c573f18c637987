"""What a user asks: a workload and a distance, the loader that is in use now, what counts, and how long it may take."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from omegaconf import DictConfig
from pydantic import Field

from harness.config import list_packaged
from harness.config.command_line import compose_config, split
from harness.config.experiment import experiment_from
from harness.config.specs import Experiment, LoaderSpec
from harness.config.validation import Number, NumberAboveZero, Section, parse, quote_value, unknown_key
from harness.diagnose.request import spell_out
from harness.errors import ConfigError
from harness.run.check import check_components
from harness.system.disk import folder_of

Objective = Literal["time", "joules", "edp"]
BOUND: Final = "fixed"
"""The loader that reads nothing in an epoch."""
_IN_ORDER: Final[Mapping[str, Mapping[str, object]]] = {
    "pytorch": {},
    "dali": {},
    "spdl": {"output_order": "input"},
    "sample_aware": {"order": "strict"},
    "pecan": {},
    "streaming": {"order": "strict"},
}
"""The loaders that are compared, with the arguments by which batches come in the epoch's order."""
WHOLE_BATCHES: Final = frozenset({"pytorch", "pytorch_unordered", "pytorch_emlio", "pecan"})
"""The loaders of which a worker makes whole batches."""
_FAR_MS: Final = 5.0
_FAR_READERS: Final = 16
"""Files that are read at once in the first probe, where the data is farther away than `_FAR_MS`."""
_GROUPS: Final = {"workload": "resnet50", "regime": "local", "loader": "pytorch"}


class AdviseOptions(Section):
    """The arguments that are not of an experiment."""

    objective: Objective = "time"
    order: Literal["any", "exact"] = "any"
    budget_s: Annotated[Number, Field(ge=10, le=3600, description="seconds of probing, 10 to 3600")] = 180.0
    max_rss_gb: NumberAboveZero | None = None
    loaders: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="a list of loaders, such as [pytorch,dali]"
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A loader with the arguments in which it differs from its config."""

    loader: str
    arguments: Mapping[str, object] = field(default_factory=dict, hash=False, compare=False)
    key: str = ""
    """Its name in an experiment; of the arguments by default."""

    def __post_init__(self) -> None:
        if not self.key:
            words = [f"{name}_{value}" for name, value in self.arguments.items()]
            object.__setattr__(self, "key", "_".join([self.loader, *words]).replace(".", "_"))

    def but(self, **arguments: object) -> Choice:
        """Return the choice with other arguments."""
        return Choice(self.loader, {**self.arguments, **arguments})

    def overrides(self) -> list[str]:
        """Return the overrides that add it to an experiment."""
        given = [f"loaders.{self.key}.{name}={quote_value(str(value))}" for name, value in self.arguments.items()]
        return [f"+loader@loaders.{self.key}={self.loader}", *given]


@dataclass(frozen=True, slots=True)
class Question:
    """A question that can be measured."""

    workload: str
    regime: str
    incumbent: Choice
    """The loader that is in use now."""
    others: tuple[Choice, ...]
    """The loaders that are compared with it, as their configs have them."""
    refused: Mapping[str, str]
    """Loaders that cannot train this workload, and why."""
    options: AdviseOptions
    overrides: tuple[str, ...]
    """Of the experiment, without loaders."""
    results_dir: Path
    cache: Path
    command: str

    @property
    def needs_link(self) -> bool:
        """Whether the data is on another node, to which a link has to be made."""
        return not self.compose([Choice(BOUND)])[1].regimes[self.regime].is_local

    def experiment_words(self, choices: Sequence[Choice]) -> list[str]:
        """Return the overrides of an experiment that runs some choices once."""
        added = [word for choice in choices for word in choice.overrides()]
        return [*self.overrides, *added, "name=advise", "repeats=1", "epochs=2", "warmup_samples=0"]

    def compose(self, choices: Sequence[Choice], *more: str) -> tuple[DictConfig, Experiment]:
        """Compose such an experiment; raises ConfigError naming the key."""
        cfg = compose_config("config", [*self.experiment_words(choices), *more])
        return cfg, experiment_from(cfg)

    def spec(self, choice: Choice) -> LoaderSpec:
        """Return the section of a choice in such an experiment."""
        return self.compose([choice])[1].loaders[choice.key]

    def paste(self, choice: Choice) -> list[str]:
        """Return the override line of a choice, and the lines to paste into a script."""
        spec = self.spec(choice)
        plain = replace(choice, key=choice.loader)
        command = shlex.join(["python", "-m", "harness", "+experiment=NAME", *plain.overrides()])
        if choice.loader == "pytorch":
            given = {name: spec.params[name] for name in ("num_workers", "prefetch_factor")}
            return [
                command,
                f"torch.utils.data.DataLoader(dataset, ..., persistent_workers=True{write_arguments(given)})",
            ]
        module, _, name = spec.target.rpartition(".")
        data = "endpoint=..." if spec.reads == "stream" else "samples=..., transform=..."
        made = f"{name}({data}, batch_size=..., seed=0{write_arguments(choice.arguments)})"
        return [command, f"from {module} import {name}", made]


def write_arguments(arguments: Mapping[str, object]) -> str:
    """Return arguments as they follow others in a call."""
    return "".join(f", {name}={value!r}" for name, value in arguments.items())


def read_options(words: Sequence[str]) -> tuple[AdviseOptions, dict[str, str]]:
    """Return the options among the words KEY=VALUE, and the others by key; raises ConfigError naming a wrong one."""
    given = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    own: dict[str, Any] = {key: yaml.safe_load(given.pop(key)) for key in AdviseOptions.model_fields if key in given}
    return parse(AdviseOptions, own), given


def read_question(argv: Sequence[str]) -> Question:
    """Return the question of a command line; raises ConfigError naming a key that is wrong."""
    arguments = split(argv)
    if arguments.needs_hydra_main or arguments.folder is not None:
        raise ConfigError(f"{arguments.flags[0]}: no such flag; --help shows what can be given")
    asked, given = read_options(arguments.overrides)
    chosen = {group: given.pop(group, usual) for group, usual in _GROUPS.items()}
    of_loader = {key.removeprefix("loader."): given.pop(key) for key in [*given] if key.startswith("loader.")}
    loader = chosen.pop("loader")
    words = spell_out([f"{key}={value}" for key, value in given.items()], chosen)
    cfg = compose_config("config", [*words, *Choice(BOUND).overrides(), "name=advise"])
    question = Question(
        workload=chosen["workload"],
        regime=chosen["regime"],
        incumbent=Choice(loader, {key: yaml.safe_load(value) for key, value in of_loader.items()}),
        others=(),
        refused={},
        options=asked,
        overrides=tuple(words),
        results_dir=folder_of("results_dir", cfg.results_dir),
        cache=folder_of("cache_dir", cfg.cache_dir),
        command=shlex.join(["python", "-m", "harness.advise", *argv]),
    )
    # What is wrong with the user's own loader, workload or dataset is refused now.
    check_components(question.compose([Choice(BOUND), question.incumbent])[1])
    wanted = asked.loaders or [*_IN_ORDER]
    if unknown := sorted(set(wanted) - set(list_packaged("loader"))):
        raise unknown_key(f"loaders.{unknown[0]}", list_packaged("loader"), "no such loader")
    return _with_others(question, wanted, is_exact=asked.order == "exact")


def _with_others(question: Question, wanted: Sequence[str], *, is_exact: bool) -> Question:
    others, refused = list[Choice](), dict[str, str]()
    for name in wanted:
        if is_exact and name not in _IN_ORDER:
            refused[name] = "brings batches in another order than the epoch's"
            continue
        choice = Choice(name, _IN_ORDER[name] if is_exact else {})
        try:
            _, experiment = question.compose([choice])
            check_components(experiment)
        except ConfigError as error:
            refused[name] = str(error)
            continue
        if (readers := experiment.loaders[choice.key].readers) and experiment.regimes[
            question.regime
        ].rtt_ms >= _FAR_MS:
            choice = choice.but(**{readers: _FAR_READERS})
        if choice != question.incumbent:
            others.append(choice)
    return replace(question, others=tuple(others), refused=refused)
