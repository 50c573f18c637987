"""Where batches are to be, checked once for every loader."""

from __future__ import annotations

import torch

from loaders.errors import LoaderConfigError

__all__ = ["usable_device"]


def usable_device(name: str) -> torch.device:
    """Return the device of this name; raise LoaderConfigError when it is neither the CPU nor a usable GPU."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoaderConfigError(f"device={name!r}: expected cpu or cuda") from error
    if device.type not in {"cpu", "cuda"}:
        raise LoaderConfigError(f"device={name!r}: expected cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LoaderConfigError(f"device={name!r}: this machine has no usable GPU; use device=cpu")
    return device
