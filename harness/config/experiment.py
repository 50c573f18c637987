"""From the config that Hydra composes to an experiment; the hash of a config, and the differences of two."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.specs import Experiment, StoreSpec
from harness.errors import ConfigError

_SCALES: Final = ("small", "full")
# Where a run is stored, not what it measures; sizes count where they are used.
_NOT_HASHED: Final = frozenset(
    {"resume", "resume_invalid", "results_dir", "cache_dir", "figures", "description", "cell_timeout_s", "checks"}
    | {"retries", "cell_stall_min", "resume_mixed", "store", "scale", "sizes"}
)
# How hosts are found and treated; what they are is compared by provenance.
_NOT_MEASURED_BY: Final = frozenset({"inventory", "keep", "on_lost_host"})
# What comes before epochs, and what joules are compared with and multiplied by; an epoch is the same.
ENERGY_BESIDE: Final = frozenset({"idle_s", "settle", "price_per_kwh", "gco2_per_kwh"})


def experiment_from(cfg: DictConfig) -> Experiment:
    """Check a composed config and return it as an Experiment; raises ConfigError naming the key."""
    # Before interpolations are resolved: an error there names a key of `sizes`, and not the one that the user gave.
    scale, sizes = cfg.get("scale", _SCALES[0]), cfg.get("sizes") or {}
    if scale not in _SCALES:
        raise ConfigError(f"scale={scale!r}: expected one of {', '.join(_SCALES)}")
    if scale != _SCALES[0] and cfg.get("name") and scale not in sizes:
        raise ConfigError(f"scale={scale}: {cfg.name} has one size; set dataset.samples or another key of it")
    config = _plain(cfg)
    config.pop("diagnose", None)
    experiment = Experiment.from_config(config)
    _check_store(experiment.store)
    return experiment


def config_hash(cfg: DictConfig) -> str:
    """Return 16 hex digits over everything in the config that changes the measurement."""
    plain = _measured(cfg)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def differences(stored: DictConfig, cfg: DictConfig) -> list[str]:
    """Return the keys, at most three, that change the measurement between two configs: "key: new, was old"."""
    before, now = (flatten_measured(c) for c in (stored, cfg))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    return [f"{key}: {now.get(key)}, was {before.get(key)}" for key in changed[:3]]


def flatten_measured(cfg: DictConfig) -> dict[str, object]:
    """Return the keys that change the measurement, with dots between their parts, and their values."""
    return _flat(_measured(cfg))


def _measured(cfg: DictConfig) -> dict[str, object]:
    """Return the keys that change the measurement."""
    plain = {key: value for key, value in _plain(cfg).items() if key not in _NOT_HASHED}
    if isinstance(testbed := plain.get("testbed"), dict):
        plain["testbed"] = {key: value for key, value in testbed.items() if key not in _NOT_MEASURED_BY}
    if isinstance(energy := plain.get("energy"), dict):
        plain["energy"] = {key: value for key, value in energy.items() if key not in ENERGY_BESIDE}
    return plain


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()}


def _plain(cfg: DictConfig) -> dict[str, object]:
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config cannot be resolved: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _check_store(store: StoreSpec) -> None:
    """Refuse a server that is not wholly named. The environment may name it, so a stored config need not pass."""
    if store.kind != "influxdb":
        return
    for key, value in (("url", store.url), ("bucket", store.bucket)):
        if not value:
            raise ConfigError(f"store.{key} is missing: set it, or INFLUXDB_V2_{key.upper()} in the environment")
    if store.token_file is None and not os.environ.get("INFLUXDB_V2_TOKEN"):
        raise ConfigError("store.token_file is missing: name a file, or set INFLUXDB_V2_TOKEN in the environment")
    if store.token_file is not None and not Path(store.token_file).is_file():
        raise ConfigError(f"store.token_file={store.token_file}: expected a file that holds the token")
