"""The decoding engines by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from loaders.errors import LoaderConfigError
from loaders.image import ImageTransform
from loaders.pipeline import Pipeline
from loaders.streaming.decoding.processes import ProcessDecoder
from loaders.streaming.decoding.threads import Decoder, TorchDecoder

__all__ = ["Engine", "make_decoder"]

Engine: TypeAlias = Literal["dali", "torch", "torch-process", "raw"]


def make_decoder(
    name: str, transform: Pipeline, seed: int, device: torch.device, num_threads: int, batch_size: int
) -> Decoder | None:
    """Return the engine of this name, None for raw.

    Raises LoaderConfigError where there is none, or none for what the pipeline's samples are.
    """
    if name == "raw":
        return None
    if not isinstance(transform, ImageTransform):
        raise LoaderConfigError(
            f"decode={name}: records hold images with a class, and {type(transform).__name__} needs others; use the "
            "loader pytorch, dali or spdl"
        )
    if name == "torch":
        return TorchDecoder(transform, seed=seed, device=device, num_threads=num_threads)
    if name == "torch-process":
        return ProcessDecoder(transform, seed=seed, device=device, num_workers=num_threads)
    if name == "dali":
        try:
            from loaders.streaming.decoding.dali import DaliDecoder
        except ImportError as error:
            raise LoaderConfigError(f"decode=dali: DALI cannot be imported ({error}); use decode=torch") from error
        return DaliDecoder(transform, seed=seed, device=device, num_threads=num_threads, batch_size=batch_size)
    raise LoaderConfigError(f"decode={name!r}: expected dali, torch, torch-process or raw")
