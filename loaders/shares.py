"""Which samples of an epoch are a rank's, for the loaders of files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaders.errors import LoaderConfigError
from loaders.image import epoch_order
from loaders.streaming.planner import Remainder

__all__ = ["Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a dataset, as torch's DistributedSampler cuts it: every world_size-th sample of an epoch.

    Where the samples cannot be shared equally, `remainder` says what becomes of the rest, by the streaming planner's
    names: "uneven" gives some ranks one sample more, "drop" leaves the rest out (another one every epoch), "pad"
    repeats the epoch's first samples. It has to be chosen where there are several ranks.
    """

    count: int
    seed: int
    rank: int = 0
    world_size: int = 1
    remainder: Remainder | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise LoaderConfigError(f"world_size={self.world_size}: expected 1 or more")
        if not 0 <= self.rank < self.world_size:
            raise LoaderConfigError(f"rank={self.rank}: expected 0 to {self.world_size - 1}")
        if self.remainder not in (None, "uneven", "drop", "pad"):
            raise LoaderConfigError(f"remainder={self.remainder!r}: expected uneven, drop or pad")
        if self.remainder is None and self.world_size > 1:
            raise LoaderConfigError(
                f"remainder: choose uneven, drop or pad for {self.world_size} ranks; DDP needs equal counts, so drop "
                "or pad"
            )
        if self.remainder == "drop" and self.count < self.world_size:
            raise LoaderConfigError(
                f"world_size={self.world_size}: remainder=drop leaves none of {self.count} samples; use pad"
            )

    def __len__(self) -> int:
        """Return the number of the rank's samples in an epoch."""
        return len(range(self.rank, self._total, self.world_size))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids of the rank's samples in the order of one epoch."""
        whole = epoch_order(self.count, seed=self.seed, epoch=epoch)
        return np.resize(whole, self._total)[self.rank :: self.world_size]

    @property
    def _total(self) -> int:
        if self.remainder == "drop":
            return self.count - self.count % self.world_size
        if self.remainder == "pad":
            return -(-self.count // self.world_size) * self.world_size
        return self.count
