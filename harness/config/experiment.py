"""The composed experiment as checked, frozen data; a wrong value is refused here, before anything starts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.keys import unknown_key
from harness.config.regime import Regime
from harness.config.specs import (
    AcceleratorSpec,
    Component,
    EnergySpec,
    Experiment,
    LoaderSpec,
    StoreSpec,
    TestbedSpec,
    Tolerances,
)
from harness.config.sweep import variants
from harness.errors import ConfigError
from harness.workloads.accelerator import KINDS

__all__ = ["config_hash", "differences", "experiment_from"]

PLACEMENTS = ("remote", "half", "local")
SCALES = ("small", "full")
_SECTIONS = frozenset(
    {"name", "description", "scale", "sizes", "placement", "workloads", "loaders", "regimes", "dataset", "accelerator"}
    | {"testbed", "energy", "store", "checks", "repeats", "epochs", "warmup_samples", "seed", "cell_timeout_s"}
    | {"cell_stall_min", "figures", "results_dir", "cache_dir", "resume", "resume_invalid", "diagnose"}
    | {"resume_mixed"}
)
"""What conf/config.yaml has, and what conf/diagnose.yaml adds to it."""
# Where a run is stored, not what it measures; sizes count where they are used.
_NOT_HASHED = frozenset(
    {"resume", "resume_invalid", "results_dir", "cache_dir", "figures", "description", "cell_timeout_s", "checks"}
    | {"cell_stall_min", "resume_mixed", "store", "scale", "sizes"}
)


def config_hash(cfg: DictConfig) -> str:
    """Return 16 hex digits over everything in the config that changes what is measured."""
    plain = _plain(cfg)
    for key in _NOT_HASHED:
        plain.pop(key, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def differences(stored: Any, cfg: DictConfig) -> list[str]:
    """Return the keys, at most three, in which two configs differ in what is measured: "key: new, was old"."""
    before, now = (_flat({k: v for k, v in _plain(c).items() if k not in _NOT_HASHED}) for c in (stored, cfg))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    return [f"{key}: {now.get(key)}, was {before.get(key)}" for key in changed[:3]]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()}


def experiment_from(cfg: DictConfig) -> Experiment:
    """Check a composed config and return it as an Experiment; raises ConfigError naming the key."""
    _check_scale(cfg)
    plain = _plain(cfg)
    for key in ("resume_invalid", "resume_mixed"):
        if plain.get(key, False) not in ((False, True) if plain.get("resume") else (False,)):
            raise ConfigError(f"{key}={plain[key]}: expected true or false, and true only with resume=FOLDER")
    for key in plain:
        if key not in _SECTIONS:
            raise unknown_key(key, _SECTIONS - {"diagnose"}, "no part of an experiment")
    name = plain.get("name")
    if not name:
        raise ConfigError(
            "no experiment was chosen: add +experiment=NAME, for one +experiment=wan30ms "
            "(python -m harness --help lists them)"
        )
    for group in ("workloads", "loaders", "regimes"):
        if not isinstance(plain.get(group) or {}, dict):
            raise ConfigError(f"{group}={plain[group]!r}: expected a section with an entry for each, by name")
        if not plain.get(group):
            raise ConfigError(f"{group} is empty: expected at least one entry, for one +{group[:-1]}@{group}.NAME=NAME")
    workloads, datasets = _workloads(plain)
    experiment = Experiment(
        name=_name(name),
        description=str(plain.get("description") or ""),
        workloads=workloads,
        loaders={k: _loader(k, variant.section) for k, variant in variants(plain["loaders"]).items()},
        regimes={k: _regime(k, v) for k, v in plain["regimes"].items()},
        datasets=datasets,
        placement=plain.get("placement", "remote"),
        accelerator=_section(AcceleratorSpec, "accelerator", plain["accelerator"]),
        testbed=_section(TestbedSpec, "testbed", plain["testbed"]),
        energy=_section(EnergySpec, "energy", plain["energy"]),
        store=_section(StoreSpec, "store", plain["store"]),
        checks=_section(Tolerances, "checks", plain["checks"]),
        repeats=_integer("repeats", plain["repeats"], 1),
        epochs=_integer("epochs", plain["epochs"], 1),
        warmup_samples=_integer("warmup_samples", plain["warmup_samples"], 0),
        seed=_integer("seed", plain["seed"], 0),
        cell_timeout_s=_number("cell_timeout_s", plain["cell_timeout_s"], above=0),
        cell_stall_min=_number("cell_stall_min", plain.get("cell_stall_min", 10), above=0),
        figures=_figures(plain.get("figures") or []),
        own_datasets=frozenset(key for key, value in plain["workloads"].items() if value.get("dataset") is not None),
    )
    _check_choices(experiment)
    _check_numbers(experiment)
    _check_testbed(experiment)
    return experiment


def _check_scale(cfg: DictConfig) -> None:
    # Before interpolations are resolved, which would name a key of `sizes` and not what the user gave.
    scale, sizes = cfg.get("scale", SCALES[0]), cfg.get("sizes") or {}
    if scale not in SCALES:
        raise ConfigError(f"scale={scale!r}: expected one of {', '.join(SCALES)}")
    if scale != SCALES[0] and cfg.get("name") and scale not in sizes:
        raise ConfigError(f"scale={scale}: {cfg.name} has one size; set dataset.samples or another key of it")


def _workloads(plain: dict[str, Any]) -> tuple[dict[str, Component], dict[str, Component]]:
    """Return the workloads, and the dataset that each is trained on: its own where it has one, or the experiment's."""
    workloads, datasets = {}, {}
    for key, value in plain["workloads"].items():
        where = f"workloads.{key}"
        target, params = _target(where, value)
        own = params.pop("dataset", None)
        workloads[key] = Component(key, target, params)
        section, named = (plain["dataset"], "dataset") if own is None else (own, f"{where}.dataset")
        datasets[key] = _dataset(section, plain["seed"], named)
        if (samples := datasets[key].params.get("samples")) is not None:
            _integer(f"{named}.samples", samples, 1)
    return workloads, datasets


def _plain(cfg: DictConfig) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config cannot be resolved: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _check_choices(experiment: Experiment) -> None:
    for key, value, allowed in (
        ("accelerator.kind", experiment.accelerator.kind, KINDS),
        ("placement", experiment.placement, PLACEMENTS),
        ("testbed.kind", experiment.testbed.kind, ("auto", "local", "netns")),
        ("testbed.link", experiment.testbed.link, ("auto", "netem", "relay")),
        ("testbed.caches", experiment.testbed.caches, ("all", "tree")),
        ("testbed.cold", experiment.testbed.cold, ("epoch", "cell")),
        ("energy.estimate", experiment.energy.estimate, ("off", "missing")),
        ("store.kind", experiment.store.kind, ("sqlite", "influxdb")),
        *((f"loaders.{k}.reads", v.reads, ("files", "stream")) for k, v in experiment.loaders.items()),
    ):
        if value not in allowed:
            raise ConfigError(f"{key}={value!r}: expected one of {', '.join(allowed)}")


def _check_testbed(experiment: Experiment) -> None:
    testbed = experiment.testbed
    far = [key for key, regime in experiment.regimes.items() if not regime.is_local]
    if testbed.kind == "local" and far:
        raise ConfigError(
            f"testbed=local: regimes.{far[0]} has a link, and a local testbed has none; use testbed=netns, or leave "
            f"the regime out ('~regimes.{far[0]}')"
        )
    if testbed.memory_mb is not None:
        _number("testbed.memory_mb", testbed.memory_mb, above=0)
    if testbed.cold == "cell" and far:
        raise ConfigError(
            f"testbed.cold=cell: regimes.{far[0]} has a link, and no row is valid whose bytes do not all come over it; "
            "use cold=epoch, or local regimes alone"
        )


def _check_store(store: StoreSpec) -> None:
    _number("store.spool_limit_mb", store.spool_limit_mb, above=0)
    if store.kind == "influxdb":
        for key, variable in (("url", "URL"), ("bucket", "BUCKET")):
            if not getattr(store, key):
                raise ConfigError(f"store.{key} is missing: set it, or INFLUXDB_V2_{variable} in the environment")
        if store.token_file is None and not os.environ.get("INFLUXDB_V2_TOKEN"):
            raise ConfigError("store.token_file is missing: name a file, or set INFLUXDB_V2_TOKEN in the environment")
        if store.token_file is not None and not Path(store.token_file).is_file():
            raise ConfigError(f"store.token_file={store.token_file}: expected a file that holds the token")


def _check_numbers(experiment: Experiment) -> None:
    _number("accelerator.time_scale", experiment.accelerator.time_scale, above=0)
    interval = _number("energy.interval_ms", experiment.energy.interval_ms, above=0)
    if not 1 <= interval <= 10_000:
        raise ConfigError(f"energy.interval_ms={interval:g}: expected 1 to 10000 ms")
    if experiment.energy.cpu_tdp_w is not None:
        _number("energy.cpu_tdp_w", experiment.energy.cpu_tdp_w, above=0)
    fraction = _number("energy.cpu_idle_fraction", experiment.energy.cpu_idle_fraction)
    if fraction > 1:
        raise ConfigError(f"energy.cpu_idle_fraction={fraction}: expected 0 to 1")
    _check_store(experiment.store)
    sensors = experiment.energy.sensors
    if sensors != "auto" and not (isinstance(sensors, list) and sensors and all(isinstance(s, str) for s in sensors)):
        raise ConfigError(f"energy.sensors={sensors!r}: expected auto, or a list of names such as [perf,nvml]")
    for f in fields(Tolerances):
        _number(f"checks.{f.name}", getattr(experiment.checks, f.name))
    for key, workload in experiment.workloads.items():
        if "batch_size" in workload.params:
            _integer(f"workloads.{key}.batch_size", workload.params["batch_size"], 1)
    for key, loader in experiment.loaders.items():
        for param, value in loader.params.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
                raise ConfigError(f"loaders.{key}.{param}={value}: expected a number that is 0 or more")


def _section(cls: type[Any], where: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}={value!r}: expected a section with keys")
    known = {f.name for f in fields(cls)}
    for key in value:
        if key not in known:
            raise unknown_key(f"{where}.{key}", known)
    return cls(**value)


def _target(where: str, value: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, dict) or not isinstance(value.get("_target_"), str):
        raise ConfigError(f"{where}: expected a section with _target_, the import path of its class")
    params = {str(k): v for k, v in value.items() if k != "_target_"}
    return value["_target_"], params


def _loader(key: str, value: Any) -> LoaderSpec:
    target, params = _target(f"loaders.{key}", value)
    reads = params.pop("reads", "files")
    secure = params.pop("secure", False)
    if not isinstance(secure, bool):
        raise ConfigError(f"loaders.{key}.secure={secure!r}: expected true or false")
    daemon = params.pop("daemon", None) or {}
    if not isinstance(daemon, dict):
        raise ConfigError(f"loaders.{key}.daemon={daemon!r}: expected a section with keys")
    return LoaderSpec(key, target, params, str(reads), daemon, secure)


def _regime(key: str, value: Any) -> Regime:
    where = f"regimes.{key}"
    if not isinstance(value, dict):
        raise ConfigError(f"{where}={value!r}: expected rtt_ms, rate_gbit, jitter_ms and loss_pct")
    known = {"rtt_ms", "rate_gbit", "jitter_ms", "loss_pct"}
    for name in value:
        if name not in known:
            raise unknown_key(f"{where}.{name}", known)
    rate = value.get("rate_gbit")
    return Regime(
        name=key,
        rtt_ms=_number(f"{where}.rtt_ms", value.get("rtt_ms")),
        rate_gbit=None if rate is None else _number(f"{where}.rate_gbit", rate, above=0),
        jitter_ms=_number(f"{where}.jitter_ms", value.get("jitter_ms", 0.0)),
        loss_pct=_number(f"{where}.loss_pct", value.get("loss_pct", 0.0)),
    )


def _dataset(value: Any, seed: Any, where: str = "dataset") -> Component:
    """Return the dataset, or what reads a real tree in its place: the class of its section `tree`, if root is set."""
    target, params = _target(where, value)
    generated = Component(str(params.get("name", "dataset")), target, params)
    tree = params.pop("tree", None)
    if tree is None:  # root and the like are the class's own business
        return generated
    reader, own = _target(f"{where}.tree", tree)
    on_error, root, limit = params.pop("on_error", "raise"), params.pop("root", None), params.pop("limit", None)
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"{where}.on_error={on_error!r}: expected one of raise, skip")
    if limit is not None:
        _integer(f"{where}.limit", limit, 1)
    if root is None:
        if limit is not None:
            raise ConfigError(f"{where}.limit={limit}: is of a real tree ({where}.root); set {where}.samples here")
        return generated
    seed = _integer(f"{where}.seed", params.get("seed", seed), 0)
    real = {"name": "tree", "root": _text(f"{where}.root", root), "on_error": on_error, "limit": limit, "seed": seed}
    return Component("tree", reader, {**own, **real})


def _figures(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"figures={value!r}: expected a list of names, such as [emlio_fig5]")
    return tuple(_text("figures", name) for name in value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}={value!r}: expected text")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\w[\w.+-]{0,99}", value):
        raise ConfigError(
            f"name={value!r}: expected up to 100 letters, digits, '_', '-', '+' and '.'; it names the results folder"
        )
    return value


def _integer(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}={value!r}: expected a whole number, {least} or more")
    return value


def _number(where: str, value: Any, *, above: float | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ConfigError(f"{where}={value!r}: expected a number")
    if above is not None and value <= above:
        raise ConfigError(f"{where}={value}: expected a number above {above:g}")
    if above is None and value < 0:
        raise ConfigError(f"{where}={value}: expected a number that is 0 or more")
    return float(value)
