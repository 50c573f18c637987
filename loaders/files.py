"""What the loaders of files share: checked arguments, and finding the image that failed."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from loaders.base import Samples
from loaders.device import usable_device
from loaders.errors import LoaderConfigError, SampleError
from loaders.image import decode
from loaders.pipeline import UndecodableError, sample_error

__all__ = ["check_arguments", "encoded_bytes", "find_bad_sample"]

_SEARCHERS: Final = 16
"""Threads that re-read suspects; far storage answers many reads as fast as one."""


def check_arguments(samples: Samples, device: str, **least: tuple[int, int]) -> torch.device:
    """Refuse what no loader of files can do; return the device.

    `least` maps an argument's name to (its value, the least that is allowed). Raises LoaderConfigError.
    """
    if not len(samples):
        raise LoaderConfigError(f"no samples under {samples.root}: expected at least one")
    for name, (value, bound) in least.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < bound:
            raise LoaderConfigError(f"{name}={value!r}: expected a whole number that is {bound} or more")
    return usable_device(device)


def encoded_bytes(samples: Samples, ids: npt.NDArray[np.int64]) -> int:
    """Return the stored size of these samples together, in bytes."""
    return int(samples.sizes[ids].sum())


def find_bad_sample(samples: Samples, suspects: Iterable[int]) -> SampleError | None:
    """Read and decode the suspects, all images, anew; return the error of the first that fails, None if none does."""

    def check(sample_id: int) -> SampleError | None:
        try:
            decode(samples.path(sample_id).read_bytes())
        except (OSError, UndecodableError) as error:
            return sample_error(samples, sample_id, "read", error)
        return None

    pool = ThreadPoolExecutor(_SEARCHERS, thread_name_prefix="bad-sample-search")
    try:
        return next((error for error in pool.map(check, suspects) if error is not None), None)
    finally:
        pool.shutdown(cancel_futures=True)
