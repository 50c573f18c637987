"""Which samples of an epoch are a rank's, for the loaders of files."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.distributed

from loaders.errors import LoaderConfigError
from loaders.pipeline.image import epoch_order
from loaders.shared.options import Remainder, check_imbalance, check_ranks


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a dataset, as torch's DistributedSampler cuts it: every world_size-th sample of an epoch.

    Where the samples cannot be shared equally, `remainder` says what becomes of the rest, by the streaming planner's
    names: "uneven" gives some ranks one sample more, "drop" leaves the rest out (another one every epoch), "pad"
    repeats the epoch's first samples. It has to be chosen where there are several ranks. With an `imbalance` the ranks
    have parts of the epoch one after the other, and the last part is that share larger than each of the others.
    """

    count: int
    seed: int
    rank: int = 0
    world_size: int = 1
    remainder: Remainder | None = None
    imbalance: float = 0.0

    def __post_init__(self) -> None:
        check_ranks(self.rank, self.world_size, self.remainder)
        check_imbalance(self.imbalance, self.remainder)
        if self.remainder == "drop" and self.count < self.world_size:
            raise LoaderConfigError(
                f"world_size={self.world_size}: remainder=drop leaves none of {self.count} samples; use pad"
            )

    def __len__(self) -> int:
        """Return the number of the rank's samples in an epoch."""
        return len(range(self._total)[self._places])

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids of the rank's samples in the order of one epoch."""
        whole = epoch_order(self.count, seed=self.seed, epoch=epoch)
        return np.resize(whole, self._total)[self._places]

    @property
    def _places(self) -> slice:
        """Return the places of the rank's samples in an epoch."""
        if not self.imbalance:
            return slice(self.rank, None, self.world_size)
        shares = self.world_size + self.imbalance
        last = self.rank == self.world_size - 1
        end = self.count if last else round(self.count * (self.rank + 1) / shares)
        return slice(round(self.count * self.rank / shares), end)

    @property
    def _total(self) -> int:
        if self.remainder == "drop":
            return self.count - self.count % self.world_size
        if self.remainder == "pad":
            return -(-self.count // self.world_size) * self.world_size
        return self.count


def in_process_group() -> bool:
    """Return whether torch.distributed is initialised in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def place_among_ranks(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return rank and world size, each as given, or else as the process has it.

    The process has those of torch.distributed where that is initialised, else RANK and WORLD_SIZE of the environment
    where both are set, as torchrun sets them, else 0 of 1.

    Raises LoaderConfigError for a RANK or WORLD_SIZE that is no number.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if in_process_group():
        own = torch.distributed.get_rank(), torch.distributed.get_world_size()
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        own = _number("RANK"), _number("WORLD_SIZE")
    else:
        own = 0, 1
    return own[0] if rank is None else rank, own[1] if world_size is None else world_size


def _number(variable: str) -> int:
    text = os.environ[variable]
    try:
        return int(text)
    except ValueError as error:
        raise LoaderConfigError(
            f"{variable}={text!r} in the environment: expected a whole number; set it, or give rank and world_size"
        ) from error
