"""The decoding engines by name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias, get_args

import torch

from loaders.errors import LoaderConfigError
from loaders.pipeline import Pipeline, stage_name
from loaders.pipeline.image import ImageTransform
from loaders.records.decoding.decoder import Decoder
from loaders.records.decoding.processes import ProcessDecoder
from loaders.records.decoding.threads import TorchDecoder
from loaders.shared.options import OnError, check_on_error

__all__ = ["Engine", "ErrorPolicy", "check_engine", "make_decoder"]

Engine: TypeAlias = Literal["auto", "dali", "torch", "torch-process", "raw"]


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What happens to samples that fail or hang."""

    on_error: OnError = "raise"
    timeout_s: float | None = None

    def check_engine_keeps(self, engine: str, why: str) -> None:
        """Raise LoaderConfigError naming the first setting that an engine cannot keep, and why."""
        for name, given in (("on_error=skip", self.on_error == "skip"), ("sample_timeout_s", self.timeout_s)):
            if given:
                raise LoaderConfigError(f"{name}: {why} with decode={engine}; use decode=torch, or leave it out")


_STRICT: Final = ErrorPolicy()


def check_engine(name: str, pipeline: Pipeline, policy: ErrorPolicy = _STRICT) -> Engine:
    """Return the engine that a name stands for with a pipeline.

    "auto" is "dali" for images where DALI is installed and can keep the policy, and "torch" otherwise. Raises
    LoaderConfigError for an unknown engine, or one that cannot keep the policy or run the pipeline.
    """
    check_on_error(policy.on_error, policy.timeout_s)
    match name:
        case "auto":
            images = isinstance(pipeline, ImageTransform) and policy == _STRICT
            return "dali" if images and _has_dali() else "torch"
        case "dali":
            if not isinstance(pipeline, ImageTransform):
                raise LoaderConfigError(
                    f"decode=dali: decodes images with a class, and {stage_name(pipeline)} takes others; use "
                    "decode=auto or decode=torch"
                )
            policy.check_engine_keeps(name, "DALI ends with a sample that fails, and cannot give one up")
            return "dali"
        case "raw":
            policy.check_engine_keeps(name, "nothing is decoded")
            return "raw"
        case "torch" | "torch-process":
            return "torch" if name == "torch" else "torch-process"
    raise LoaderConfigError(f"decode={name!r}: expected one of {', '.join(get_args(Engine))}")


def make_decoder(
    engine: Engine,
    pipeline: Pipeline,
    *,
    seed: int,
    device: torch.device,
    num_threads: int,
    batch_size: int,
    policy: ErrorPolicy = _STRICT,
) -> Decoder | None:
    """Return an engine that `check_engine` named, None for raw; raises LoaderConfigError where it cannot be had."""
    if engine == "raw":
        return None
    if engine in ("torch", "torch-process"):
        decoder = TorchDecoder if engine == "torch" else ProcessDecoder
        on_error, timeout_s = policy.on_error, policy.timeout_s
        return decoder(pipeline, seed=seed, device=device, workers=num_threads, on_error=on_error, timeout_s=timeout_s)
    assert isinstance(pipeline, ImageTransform)
    try:
        from loaders.records.decoding.dali import DaliDecoder
    except ImportError as error:
        raise LoaderConfigError(f"decode=dali: DALI cannot be imported ({error}); use decode=torch") from error
    return DaliDecoder(pipeline, seed=seed, device=device, num_threads=num_threads, batch_size=batch_size)


def _has_dali() -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec("nvidia.dali") is not None
    return False
