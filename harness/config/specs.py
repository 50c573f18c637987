"""An experiment and its parts as frozen, checked data, in the form that the config has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, field_validator, model_validator

from harness.config import list_packaged
from harness.config.regime import Regime
from harness.config.sweep import variants
from harness.config.validation import Number, NumberAboveZero, Section, parse
from harness.errors import ConfigError

_Count = Annotated[int, Field(ge=1)]
_NaturalNumber = Annotated[int, Field(ge=0)]


class ComponentSpec(Section):
    """A class found by its import path, and the arguments that the config gives it, which the class checks.

    In a config the arguments stand beside `_target_` and the keys that are ours.
    """

    key: str = Field(default="", validation_alias="_key_")
    target: str = Field(validation_alias="_target_", description="the import path of its class")
    params: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, section: object) -> object:
        """Gather the arguments of the class."""
        if not isinstance(section, Mapping) or ("target" in section and "_target_" not in section):
            return section
        ours = {"_key_", "_target_"} | cls._keys(section)
        own = {name: value for name, value in section.items() if name in ours}
        return {**own, "params": {str(name): value for name, value in section.items() if name not in ours}}

    @classmethod
    def _keys(cls, section: Mapping[str, object]) -> set[str]:
        """Return the keys of a section that are ours."""
        return set()


class DatasetSpec(ComponentSpec):
    """A dataset that is generated; with a `tree` and its `root`, a real tree of files is read in its place."""

    tree: ComponentSpec | None = None
    """What reads a real tree. Without one, the keys below are arguments of the class."""
    root: Annotated[str, Field(min_length=1)] | None = None
    limit: _Count | None = None
    on_error: Literal["raise", "skip"] = "raise"

    @classmethod
    def _keys(cls, section: Mapping[str, object]) -> set[str]:
        return {"tree"} if section.get("tree") is None else {"tree", "root", "limit", "on_error"}

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if self.limit is not None and self.root is None:
            raise ValueError(f"limit={self.limit}: belongs to a real tree, which root names; set samples here")
        return self

    def component(self, seed: int) -> ComponentSpec:
        """Return the class that makes or reads the samples; `seed` chooses samples of a tree by default."""
        if self.tree is None or self.root is None:
            return ComponentSpec(key=str(self.params.get("name", "dataset")), target=self.target, params=self.params)
        own_seed = self.params.get("seed")
        chosen = {"limit": self.limit, "seed": seed if own_seed is None else own_seed}
        real = {"name": "tree", "root": self.root, "on_error": self.on_error, **chosen}
        return ComponentSpec(key="tree", target=self.tree.target, params={**self.tree.params, **real})


class WorkloadSpec(ComponentSpec):
    """A model to train, and its own dataset where it has one."""

    dataset: DatasetSpec | None = None

    @classmethod
    def _keys(cls, section: Mapping[str, object]) -> set[str]:
        return {"dataset"}


class LoaderSpec(ComponentSpec):
    """A loader and how it reaches the data."""

    reads: Literal["files", "stream", "once"] = "files"
    """'files': the tree, over the mount when remote; 'stream': batches from the daemon on the storage node; 'once': one
    batch of the tree when it is made, and nothing in an epoch, which is the upper bound of all loaders."""
    daemon: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments of the daemon of a loader that is streamed to."""
    secure: bool = False
    """Whether the daemon and the loader know each other by keys that are made for the run."""
    environment: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] | None = Field(
        default=None, description="the name of a script of playbooks/ without .sh, such as mosaic"
    )
    """The environment of its own in which the cell's process runs; None for the harness's own."""
    regimes: tuple[str, ...] = Field(default=(), strict=False, description="a list of keys of regimes, such as [local]")
    """The regimes in which it runs; empty for all of them."""
    readers: str = ""
    """The argument that is how many files are read at once; empty where there is none. Where the config has `auto` for
    it, the number is found before the first epoch, for each workload and regime."""
    listed: _Count | None = None
    """Paths of the list of files that its samples carry, those of the dataset repeated; None for the dataset's own."""
    world_size: _Count | None = None
    """Ranks of its cells, which a sweep may vary; None for `distributed.world_size`."""
    base: str = Field(default="", validation_alias="_base_")
    """Key of the config's section; other than `key` where the section has a sweep."""
    setting: Mapping[str, object] = Field(default_factory=dict, validation_alias="_setting_")
    """The arguments that the sweep sets; empty without one."""

    @classmethod
    def _keys(cls, section: Mapping[str, object]) -> set[str]:
        ours = {"reads", "readers", "daemon", "secure", "environment", "regimes", "listed", "world_size"}
        return ours | {"_base_", "_setting_"}

    @property
    def finds_readers(self) -> bool:
        """Whether how many files are read at once is still to be found."""
        return bool(self.readers) and self.params.get(self.readers) == "auto"

    def read_with(self, readers: int) -> Self:
        """Return the section with a number in the place of `auto`."""
        return self.model_copy(update={"params": {**self.params, self.readers: readers}})

    @field_validator("daemon", mode="before")
    @classmethod
    def _fill_daemon(cls, value: object) -> object:
        return {} if value is None else value


class AcceleratorSpec(Section):
    """What runs the training step."""

    kind: Literal["auto", "cuda", "cpu", "emulated", "none"] = "auto"
    model: str = "a100"
    time_scale: NumberAboveZero = 1.0
    seconds_per_sample: NumberAboveZero | Mapping[str, NumberAboveZero] | None = Field(
        default=None, description="a number above 0, or such numbers by workload"
    )
    """The user's own assumption of an emulated step's duration; one for all workloads, or by a workload's name."""
    host_cpu_ms: Number = 0.0
    """CPU time that the host uses in each emulated step."""


class TestbedSpec(Section):
    """Where the experiment runs."""

    __test__ = False

    kind: Literal["auto", "local", "netns", "ssh"] = "auto"
    inventory: str | None = None
    """Of kind ssh: Ansible's inventory of the hosts, or slurm: for the hosts of this job."""
    keep: bool = False
    """Whether the hosts stay set up after the run."""
    on_lost_host: Literal["stop", "continue"] = "stop"
    """What follows a cell that failed because a host was lost."""
    link: Literal["auto", "netem", "relay"] = "auto"
    congestion: str = "cubic"
    """TCP's congestion control on both sides of a link, of those that the kernel has."""
    caches: Literal["all", "tree"] = "all"
    """What the kernel forgets before an epoch: all its caches, or only the pages of what the epoch reads."""
    cold: Literal["epoch", "cell"] = "epoch"
    """When it does: before every epoch, or only before the first one of a cell."""
    memory_mb: NumberAboveZero | None = None
    """Maximum memory of a cell's processes and daemons together, in 10^6 bytes, with the page cache of what they read;
    None for no limit."""


class DistributedSpec(Section):
    """Data-parallel training: the processes of a cell, by torch.distributed's own names."""

    world_size: _Count = 1
    """Ranks of a cell. They are placed on the testbed's compute nodes in turn."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """What synchronises gradients; auto is nccl where batches are on GPUs, and gloo elsewhere."""


class SettleSpec(Section):
    """For how long a run waits, before its first epoch, until temperatures are steady."""

    max_s: Annotated[Number, Field(le=3600, description="0 to 3600 s")] = 0.0
    """The longest wait; 0 for none."""
    degrees: NumberAboveZero = 1.0
    """By how much the mean temperature of the second half of `over_s` may differ from that of its first half."""
    over_s: NumberAboveZero = 10.0

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if 0 < self.max_s < self.over_s:
            raise ValueError(
                f"max_s={self.max_s:g}: too short to see that temperatures are steady; "
                f"expected over_s={self.over_s:g} or more, or 0 for no wait"
            )
        return self


WallMeters: TypeAlias = str | list[str] | None
"""A meter of a whole machine as `energymon run --wall` takes it, or a list with a plug for each of its supplies."""


class EnergySpec(Section):
    """How the energy agents sample."""

    interval_ms: Annotated[Number, Field(ge=1, le=10_000, description="1 to 10000 ms")] = 100.0
    sensors: Literal["auto"] | Annotated[list[str], Field(min_length=1)] = Field(
        default="auto", description="auto, or a list of names such as [perf,nvml]"
    )
    estimate: Literal["off", "missing"] = "missing"
    cpu_tdp_w: NumberAboveZero | None = None
    cpu_idle_fraction: Annotated[Number, Field(le=1)] = 0.12
    idle_s: Annotated[Number, Field(le=3600, description="0 to 3600 s")] = 0.0
    """For how long each host's idle power is measured when a run begins; 0 for no baseline."""
    settle: SettleSpec = SettleSpec()
    price_per_kwh: NumberAboveZero | None = None
    gco2_per_kwh: NumberAboveZero | None = None
    wall: WallMeters = None
    wall_auth: str | None = None
    """File with USER:PASSWORD of a Redfish service, on each host that asks one."""
    wall_ca: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """Options of `energymon run` for an estimate and for what a meter at the wall asks for."""
        return {
            "cpu-idle-fraction": self.cpu_idle_fraction,
            "cpu-tdp-w": self.cpu_tdp_w,
            "wall-auth": self.wall_auth,
            "wall-ca": self.wall_ca,
        }


class StoreSpec(Section):
    """Where energy readings go beside the results folder."""

    kind: Literal["sqlite", "influxdb"] = "sqlite"
    url: str | None = None
    org: str | None = None
    bucket: str | None = None
    token_file: str | None = None
    ca: str | None = None
    spool_limit_mb: NumberAboveZero = 1024.0

    @property
    def options(self) -> dict[str, object]:
        """Options of `energymon run`, without the token: the agent reads it from its file or the environment."""
        if self.kind != "influxdb":
            return {}
        named = {"url": self.url, "org": self.org, "bucket": self.bucket, "token-file": self.token_file, "ca": self.ca}
        return {**{f"influxdb-{key}": value for key, value in named.items()}, "spool-limit-mb": self.spool_limit_mb}


class Tolerances(Section):
    """What the validity checks allow."""

    rtt_ms: Number = 0.1
    rtt_pct: Number = 3.0
    rate_pct: Number = 10.0
    jitter_pct: Number = 10.0
    missed_ticks_pct: Number = 1.0
    clock_offset_ms: Number = 1.0
    spread_pct: Number = 10.0
    others_cpu_pct: Number = 10.0
    others_cpus: Number = 0.5
    steal_pct: Number = 5.0
    idle_cpu_pct: Number = 10.0
    link_pause_ms: Number = 200.0
    link_held_ms: Number = 10.0
    link_held_pct: Number = 5.0
    early_bytes_pct: Number = 1.0
    early_cpu_pct: Number = 2.0
    early_cpu_s: Number = 0.5
    step_pct: Number = 2.0
    link_epoch_ms: Number = 0.3
    link_epoch_pct: Number = 3.0
    throttled_pct: Number = 0.0
    pressure_pct: Number = 10.0
    swapped_mb: Number = 1.0
    frequency_pct: Number = 3.0
    slowed_pct: Number = 0.0
    capped_pct: Number = 100.0
    setup_pct: Number = 10.0


class Experiment(Section):
    """One question: loaders x workloads x regimes x repeats."""

    # The process of a cell imports this module, but makes no experiment.
    model_config = ConfigDict(defer_build=True)

    name: str = Field(
        pattern=r"^\w[\w.+-]{0,99}$",
        description="up to 100 letters, digits, '_', '-', '+' and '.'; it names the results folder",
    )
    description: str = ""
    scale: Literal["small", "full"] = "small"
    sizes: Mapping[str, object] = Field(default_factory=dict)
    placement: Literal["remote", "half", "local", "sharded"] = "remote"
    """Where the samples of a regime with a link lie: 'remote', 'half' (half of them on the compute node), 'local', or
    'sharded' (each of two compute nodes has half of them)."""
    distributed: DistributedSpec = DistributedSpec()
    dataset: DatasetSpec | None = None
    """What the workloads without a dataset of their own are trained on."""
    workloads: Mapping[str, WorkloadSpec] = Field(default_factory=dict)
    loaders: Mapping[str, LoaderSpec] = Field(default_factory=dict)
    """By key, with every sweep written out."""
    regimes: Mapping[str, Regime] = Field(default_factory=dict)
    accelerator: AcceleratorSpec = AcceleratorSpec()
    testbed: TestbedSpec = TestbedSpec()
    energy: EnergySpec = EnergySpec()
    store: StoreSpec = StoreSpec()
    checks: Tolerances = Tolerances()
    repeats: _Count | Mapping[str, _NaturalNumber] = Field(default=1, description="a count, or counts by loader")
    """Counted repeats of a loader in a workload and a regime; or by its section in `loaders`, by its whole key of one
    setting of a sweep, and under `others` of those that are not named. A section that is named with 0 is left out. A
    regime's count is the most that any loader has there."""
    epochs: _Count = 1
    retries: _NaturalNumber = 2
    """How often a cell may be measured again at the end because something beside the run disturbed it."""
    warmup_samples: _NaturalNumber = 0
    seed: _NaturalNumber = 0
    cell_timeout_s: NumberAboveZero = 7200
    cell_stall_min: NumberAboveZero = 10
    figures: tuple[str, ...] = Field(default=(), strict=False, description="a list of names, such as [emlio_fig5]")
    judged: bool = True
    """Whether the papers' claims of `figures` are judged; false for runs too small to carry a verdict."""
    results_dir: str = Field(default="results", description="a folder")
    cache_dir: str = Field(default="", description="a folder")
    resume: str | None = None
    resume_invalid: bool = False
    resume_mixed: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, stored: bool = False) -> Experiment:
        """Return the experiment of a composed config, or of the `config.yaml` of a results folder.

        Args:
            config: the config's keys and values, with its interpolations resolved.
            stored: whether it comes from a results folder; default: False.

        Raises:
            ConfigError: a key or value is wrong, which in a stored config is one of another version, or a new
                experiment lacks a name, a dataset or one of the groups.
        """
        if not stored:
            _check_chosen(config)
            return parse(cls, config)
        try:
            return parse(cls, config)
        except ConfigError as error:
            raise ConfigError(f"is of another version of joulefeed ({error})") from error

    @model_validator(mode="before")
    @classmethod
    def _name_entries(cls, config: object) -> object:
        """Write the sweeps of loaders out, and give each entry of a group its key."""
        if not isinstance(config, Mapping):
            return config
        named = {name: value for name, value in config.items() if value is not None or name not in _MAY_BE_NULL}
        groups = {group: named[group] for group in _GROUPS if isinstance(named.get(group), Mapping)}
        for group, key in (("workloads", "_key_"), ("regimes", "name")):
            for name, section in groups.get(group, {}).items():
                if isinstance(section, Mapping):
                    groups[group] = {**groups[group], name: {**section, key: str(name)}}
        if "loaders" in groups:
            repeats = named.get("repeats")
            counts = repeats if isinstance(repeats, Mapping) else {}
            used = {k: one for k, one in groups["loaders"].items() if counts.get(k, counts.get("others")) != 0}
            groups["loaders"] = variants(used)
        return {**named, **groups}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """Yield what of several keys does not go together."""
        far = next((key for key, regime in self.regimes.items() if not regime.is_local), None)
        if far is not None and self.testbed.kind == "local":
            yield (
                f"testbed=local: regimes.{far} has a link, and a local testbed has none; use testbed=netns, or leave "
                f"the regime out ('~regimes.{far}')"
            )
        if far is not None and self.testbed.cold == "cell":
            yield (
                f"testbed.cold=cell: regimes.{far} has a link, and no row is valid whose bytes do not all come over "
                "it; use cold=epoch, or only local regimes"
            )
        limited = [key for key, loader in self.loaders.items() if loader.daemon.get("memory_mb") is not None]
        if limited and self.testbed.kind == "ssh":
            yield (
                f"testbed=ssh: loaders.{limited[0]}.daemon.memory_mb limits daemons of this machine alone; leave it "
                "out, or use testbed=netns"
            )
        unequal = [key for key, regime in self.regimes.items() if regime.paths]
        if unequal and self.testbed.link == "netem":
            yield (
                f"testbed.link=netem: regimes.{unequal[0]} has paths, which netem does not have; use "
                "testbed.link=relay or auto"
            )
        for key, loader in self.loaders.items():
            yield from self._problems_of_loader(key, loader)
        if self.testbed.kind == "ssh" and not self.testbed.inventory:
            yield (
                "testbed=ssh: expected testbed.inventory=FILE, an Ansible inventory of the hosts; "
                "playbooks/inventories has examples"
            )
        if self.testbed.inventory and self.testbed.kind != "ssh":
            yield f"testbed.inventory={self.testbed.inventory}: expected only with testbed=ssh"
        fewest = min(map(self.count_ranks, self.loaders), default=self.distributed.world_size)
        if self.placement == "sharded" and fewest < 2:
            yield (
                f"distributed.world_size={fewest}: placement=sharded has two compute nodes; "
                "expected 2 or more, so that each trains"
            )
        yield from self._problems_of_repeats()
        for key in ("resume_invalid", "resume_mixed"):
            if getattr(self, key) and not self.resume:
                yield f"{key}=true: expected only with resume=FOLDER"

    def _problems_of_loader(self, key: str, loader: LoaderSpec) -> Iterator[str]:
        for regime in loader.regimes:
            if regime not in self.regimes:
                yield f"loaders.{key}.regimes: {regime!r}: expected some of {', '.join(self.regimes)}"
        if loader.listed is not None and loader.reads != "files":
            yield f"loaders.{key}.listed={loader.listed}: expected none, for the loader reads no files"
        where = f"loaders.{key}.{loader.readers}=auto"
        if loader.finds_readers and loader.reads != "files":
            yield f"{where}: expected a number, for the loader reads no files"
        if loader.finds_readers and (ranks := self.count_ranks(key)) > 1:
            yield f"{where}: expected a number, for the loader has {ranks} ranks, and it is found for one alone"
        if loader.finds_readers and self.testbed.memory_mb is not None:
            yield f"{where}: expected a number, for it is found without the limit testbed.memory_mb"

    def _problems_of_repeats(self) -> Iterator[str]:
        """Yield what of the repeats by loader does not go with the loaders."""
        if not isinstance(self.repeats, Mapping):
            return
        bases = dict.fromkeys(loader.base for loader in self.loaders.values())
        # A shipped loader may have been taken out of the experiment.
        known = {*bases, *self.regimes, *list_packaged("loader"), "others"}
        # Another sweep may have taken out a setting.
        swept = tuple(f"{loader.base}_{name}_" for loader in self.loaders.values() for name in loader.setting)
        for key, count in self.repeats.items():
            if key not in known and count and not key.startswith(swept):
                yield f"repeats.{key}: expected others, or one of {', '.join(bases)}"
        for base in bases:
            if base not in self.repeats and "others" not in self.repeats:
                yield f"repeats.{base} is missing: name it, or the rest as others"
        if not self.turns:
            yield "repeats: no loader has any; expected at least 1 for one of them"

    def count_repeats(self, loader: str, regime: str = "") -> int:
        """Return the repeats of a loader, by its key, in a regime or in the one where it has most."""
        if not isinstance(self.repeats, Mapping):
            return self.repeats
        named = (key for key in (loader, self.loaders[loader].base, "others") if key in self.repeats)
        count = self.repeats.get(next(named, ""), 0)
        return min(count, self.repeats.get(regime, count))

    @property
    def turns(self) -> int:
        """The greatest number of repeats that a loader has."""
        return max(map(self.count_repeats, self.loaders), default=0)

    @cached_property
    def datasets(self) -> Mapping[str, ComponentSpec]:
        """What each workload is trained on, by the workload's key; equal ones are one dataset."""
        found = {key: workload.dataset or self.dataset for key, workload in self.workloads.items()}
        return {key: dataset.component(self.seed) for key, dataset in found.items() if dataset is not None}

    def count_ranks(self, loader: str) -> int:
        """Return the ranks of a loader's cells, by its key."""
        return self.loaders[loader].world_size or self.distributed.world_size

    def dataset_key(self, workload: str) -> str:
        """Return the config key of a workload's dataset."""
        return "dataset" if self.workloads[workload].dataset is None else f"workloads.{workload}.dataset"

    @property
    def streams(self) -> bool:
        """Whether any loader is fed by the daemon, so that shards are needed."""
        return any(spec.reads == "stream" for spec in self.loaders.values())


_GROUPS = ("workloads", "loaders", "regimes")
_MAY_BE_NULL = frozenset({*_GROUPS, "description", "figures"})
"""Keys of which null means the default."""


def _check_chosen(config: Mapping[str, object]) -> None:
    """Refuse a new config in which something is still to be chosen."""
    if not config.get("name"):
        raise ConfigError(
            "no experiment was chosen: add +experiment=NAME, such as +experiment=wan30ms "
            "(python -m harness --help lists them)"
        )
    for group in _GROUPS:
        if not config.get(group):
            example = f"+{group[:-1]}@{group}.NAME=NAME"
            raise ConfigError(f"{group} is empty: expected at least one entry, such as {example}")
    if not config.get("dataset"):
        raise ConfigError("dataset is missing: expected a section with _target_; dataset=NAME chooses one")
