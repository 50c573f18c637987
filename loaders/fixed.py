"""The same batch again and again: the upper bound of what any loader can give (SPDL, section 6.3)."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from loaders.base import Batch, LoaderStats, Samples
from loaders.errors import LoaderError, SampleError
from loaders.image import epoch_order
from loaders.pipeline import Pipeline, load_item
from loaders.shared.files import check_arguments, encoded_bytes

__all__ = ["FixedBatchLoader"]


class FixedBatchLoader:
    """Reads and transforms one batch when it is made, and gives it as that of every step of every epoch.

    Batches carry the ids, and count the bytes, that another loader's would; their data are those of the first samples.
    """

    notes: tuple[str, ...] = (
        "every step gets one batch that was made beforehand: an upper bound and no loader; ids and bytes are those of "
        "the samples in whose place it stands",
    )

    def __init__(
        self, *, samples: Samples, transform: Pipeline, batch_size: int, seed: int, device: str = "cpu"
    ) -> None:
        """Make the batch; raise LoaderConfigError for an argument, SampleError for a sample that cannot be loaded."""
        self._device = check_arguments(samples, device, batch_size=(batch_size, 1))
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self._stats = LoaderStats()
        size = min(batch_size, len(samples))
        self._whole = self._made(transform, size)
        rest = len(samples) % batch_size
        self._last = self._made(transform, rest) if 0 < rest < size else self._whole
        self._closed = False

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batch as often as an epoch has batches; raise LoaderError once closed."""
        order = epoch_order(len(self._samples), seed=self._seed, epoch=epoch)
        for start in range(0, len(order), self._batch_size):
            if self._closed:
                raise LoaderError("the loader is closed: make a new one")
            ids: npt.NDArray[np.int64] = order[start : start + self._batch_size]
            made = self._whole if len(ids) == len(self._whole) else self._last
            batch = Batch(ids, made.data, made.labels, encoded_bytes(self._samples, ids), made.extra)
            self._stats.count(batch)
            yield batch

    def stats(self) -> LoaderStats:
        """Return the counts so far."""
        return self._stats

    def close(self) -> None:
        """End the epoch that is under way."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _made(self, transform: Pipeline, size: int) -> Batch:
        items = [load_item(transform, self._samples, i, seed=self._seed, epoch=0) for i in range(size)]
        try:
            tensors = transform.collate(items)
        except Exception as error:
            raise SampleError(f"samples 0 to {size - 1} cannot be collated: {error}") from error
        extra = {name: tensor.to(self._device) for name, tensor in tensors.extra.items()}
        data, labels = tensors.data.to(self._device), tensors.labels.to(self._device)
        return Batch(np.arange(size), data, labels, 0, extra)
