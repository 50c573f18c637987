"""Shared memory for the batches of torch's DataLoader workers, and one clear line where there is no room for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch

from loaders.errors import LoaderError
from loaders.pipeline import Tensors

__all__ = ["check_room", "share"]

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108


def check_room(needed: int) -> None:
    """Raise LoaderError where shared memory has no room for so many bytes.

    torch would write to pages that are not there, which kills the worker.
    """
    free = _free_bytes()
    if free is not None and needed > free:
        raise _no_room(needed, free)


def share(tensors: Tensors) -> None:
    """Move what of a batch is not in shared memory to it; raise LoaderError where there is no room.

    torch would do it in a thread of its queue, which prints the failure and lets the batch be waited for for ever.
    """
    each = [tensors.data, tensors.labels, *tensors.extra.values()]
    left: list[torch.Tensor] = [tensor for tensor in each if not tensor.is_shared()]  # type: ignore[no-untyped-call]
    needed = sum(tensor.untyped_storage().nbytes() for tensor in left)
    check_room(needed)
    try:
        for tensor in left:
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        # Another worker took the room since.
        raise _no_room(needed, _free_bytes() or 0) from error


def _free_bytes() -> int | None:
    try:
        of = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return of.f_bavail * of.f_frsize


def _no_room(needed: int, free: int) -> LoaderError:
    return LoaderError(
        f"{_SHARED_MEMORY} has {free / 1e6:.1f} MB left for a batch of {needed / 1e6:.1f} MB, in which workers hand it "
        f"over: enlarge it (mount -o remount,size=2G {_SHARED_MEMORY}; docker run --shm-size=2g), or lower batch_size, "
        "num_workers or prefetch_factor"
    )
