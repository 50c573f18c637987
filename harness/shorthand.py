"""`workload=NAME` and `workload.key=value` for an experiment that has one workload."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from harness.errors import ConfigError

__all__ = ["expand"]


def expand(argv: list[str]) -> list[str]:
    """Return the arguments with each workload shorthand written out; the rest as they were."""
    short = [a for a in argv if a.startswith(("workload=", "workload."))]
    if not short:
        return argv
    rest = [a for a in argv if a not in short]
    try:
        with initialize_config_module("conf", version_base="1.3"):
            cfg = compose("config", overrides=[a for a in rest if not a.startswith("-")])
    except (HydraException, OmegaConfBaseException):
        return argv  # Hydra itself says what is wrong
    keys = [str(key) for key in cfg.workloads]
    if len(keys) != 1:
        raise ConfigError(
            f"{short[0]}: the experiment has {len(keys)} workloads"
            + (f" ({', '.join(keys)}): say workloads.NAME… for one of them" if keys else "; choose +experiment=NAME")
        )
    key, written = keys[0], []
    for argument in short:
        if argument.startswith("workload="):
            name = argument.partition("=")[2]
            if name != key:
                written += [f"~workloads.{key}", f"+workload@workloads.{name}={name}"]
                key = name
    written += [f"workloads.{key}.{a.partition('.')[2]}" for a in short if a.startswith("workload.")]
    return rest + written
