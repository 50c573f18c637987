"""What the loaders of files share: checked arguments, and the bytes of a batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from loaders.base import Samples
from loaders.errors import LoaderConfigError
from loaders.shared.arguments import check_whole
from loaders.shared.device import usable_device

__all__ = ["check_arguments", "encoded_bytes"]


def check_arguments(samples: Samples, device: str, **least: tuple[int, int]) -> torch.device:
    """Refuse what no loader of files can do; return the device.

    `least` maps an argument's name to (its value, the least that is allowed). Raises LoaderConfigError.
    """
    if not len(samples):
        raise LoaderConfigError(f"no samples under {samples.root}: expected at least one")
    for name, (value, bound) in least.items():
        check_whole(name, value, bound)
    return usable_device(device)


def encoded_bytes(samples: Samples, ids: npt.NDArray[np.int64]) -> int:
    """Return the stored size of these samples together, in bytes."""
    return int(samples.sizes[ids].sum())
