"""An epoch in two lanes: which samples are whose, and whose batch is next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from loaders.base import Batch
from loaders.pytorch import PyTorchLoader
from loaders.shared.shares import Share

__all__ = ["Lane", "Lanes", "Part", "due"]


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """How the samples of a rank's epochs are divided between quick and slow ones."""

    share: Share
    sizes: npt.NDArray[np.int64]
    """Of every sample's file in bytes, shape (n,)."""
    is_slow: npt.NDArray[np.bool_]
    """Shape (n,)."""
    batch_size: int

    def split(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the ids of the quick and of the slow samples, each in the epoch's order.

        The quick ones fill whole batches, so that an epoch has no more batches than its samples need: those of them
        that would be left over are counted as slow, the largest first.
        """
        order = self.share.order(epoch)
        slow = self.is_slow[order]
        if slow.any():
            quick = np.flatnonzero(~slow)
            left_over = len(quick) % self.batch_size
            largest = np.argsort(self.sizes[order[quick]], kind="stable")[len(quick) - left_over :]
            slow[quick[largest]] = True
        return order[~slow], order[slow]

    @property
    def quick(self) -> Part:
        """The quick samples of every epoch."""
        return Part(self, 0)

    @property
    def slow(self) -> Part:
        """The slow samples of every epoch."""
        return Part(self, 1)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the lanes, as `loaders.shared.shares.Share` tells a rank's samples."""

    of: Lanes
    lane: Literal[0, 1]

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids of the lane's samples in the order of one epoch."""
        return self.of.split(epoch)[self.lane]

    def batches(self, epoch: int) -> int:
        """Return how many batches the lane has in an epoch."""
        return math.ceil(len(self.order(epoch)) / self.of.batch_size)

    def __len__(self) -> int:
        """Return the number of the lane's samples in the first epoch; another may have more or less."""
        return len(self.order(0))


class Lane(PyTorchLoader):
    """A PyTorch loader of one lane's samples."""

    def __init__(self, part: Part, **arguments: Any) -> None:
        """Take the lane's samples in the place of all; the arguments are PyTorchLoader's."""
        super().__init__(**arguments)
        self._part = part
        self._share = self._keys._share = cast(Share, part)

    def started(self, epoch: int) -> Iterator[Batch]:
        """Have the workers begin with an epoch now; return its batches. An empty lane has no workers."""
        self._check_open()
        return self._counted(self._run(self._start(epoch))) if self._part.batches(epoch) else iter(())


def due(quick: int, slow: int) -> Iterator[Literal[0, 1]]:
    """Yield 0 for a quick batch and 1 for a slow one, in the order in which an epoch yields them.

    The slow ones lie evenly among the others, each at the end of its part; so an epoch's last batch is slow if any is.
    """
    given = 0
    for turn in range(1, slow + 1):
        until = math.ceil(turn * quick / slow)
        for _ in range(given, until):
            yield 0
        given = until
        yield 1
    for _ in range(given, quick):
        yield 0
