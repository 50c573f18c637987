"""What the loaders of single files share: reading a sample, and finding the one that failed."""

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
from loaders.image import ImageTransform, UndecodableError, decode

__all__ = ["check_arguments", "encoded_bytes", "find_bad_sample", "load_sample", "read_sample"]

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


def read_sample(samples: Samples, sample_id: int) -> bytes:
    """Return one sample's file, whole; raise SampleError that names it."""
    try:
        return samples.path(sample_id).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise SampleError(f"sample {sample_id} ({samples.path(sample_id)}) cannot be read: {reason}") from error


def load_sample(samples: Samples, sample_id: int, *, transform: ImageTransform, seed: int, epoch: int) -> torch.Tensor:
    """Read and transform one sample, float32 of shape (3, size, size); raise SampleError that names it."""
    encoded = read_sample(samples, sample_id)
    try:
        return transform.apply(encoded, seed=seed, epoch=epoch, sample_id=sample_id)
    except UndecodableError as error:
        raise _undecodable(samples, sample_id, error) from error


def find_bad_sample(samples: Samples, suspects: Iterable[int]) -> SampleError | None:
    """Read and decode the suspects anew; return the error of the first that fails, None if none does."""

    def check(sample_id: int) -> SampleError | None:
        try:
            decode(read_sample(samples, sample_id))
        except UndecodableError as error:
            return _undecodable(samples, sample_id, error)
        except SampleError as error:
            return error
        return None

    pool = ThreadPoolExecutor(_SEARCHERS, thread_name_prefix="bad-sample-search")
    try:
        return next((error for error in pool.map(check, suspects) if error is not None), None)
    finally:
        pool.shutdown(cancel_futures=True)


def _undecodable(samples: Samples, sample_id: int, error: UndecodableError) -> SampleError:
    return SampleError(f"sample {sample_id} ({samples.path(sample_id)}) cannot be decoded: {error}")
