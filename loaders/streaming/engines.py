"""The decoding engines by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from loaders.errors import LoaderConfigError
from loaders.image import ImageTransform
from loaders.streaming.decode import Decoder, TorchDecoder
from loaders.streaming.process_decode import ProcessDecoder

__all__ = ["Engine", "make_decoder"]

Engine: TypeAlias = Literal["dali", "torch", "torch-process", "raw"]


def make_decoder(
    name: str, transform: ImageTransform, seed: int, device: torch.device, num_threads: int, batch_size: int
) -> Decoder | None:
    """Return the engine of this name, None for raw; raise LoaderConfigError where there is none."""
    if name == "raw":
        return None
    if name == "torch":
        return TorchDecoder(transform, seed=seed, device=device, num_threads=num_threads)
    if name == "torch-process":
        return ProcessDecoder(transform, seed=seed, device=device, num_workers=num_threads)
    if name == "dali":
        try:
            from loaders.streaming.dali_decode import DaliDecoder
        except ImportError as error:
            raise LoaderConfigError(f"decode=dali: DALI cannot be imported ({error}); use decode=torch") from error
        return DaliDecoder(transform, seed=seed, device=device, num_threads=num_threads, batch_size=batch_size)
    raise LoaderConfigError(f"decode={name!r}: expected dali, torch, torch-process or raw")
