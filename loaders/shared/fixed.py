"""The same batch again and again: the upper bound of what any loader can give (SPDL, section 6.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loaders.base import Batch, Samples
from loaders.errors import LoaderError
from loaders.pipeline import Tensors, load_item
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import LoaderOptions, takes_options
from loaders.shared.processor import collate_items


class FixedBatchLoader(FileLoader):
    """Reads and transforms one batch when it is made, and yields it at every step of every epoch.

    Batches have the ids and the byte counts of another loader's batches. Their data are of the samples whose files are
    nearest the median size, so that a step on inputs of different sizes gets usual ones.
    """

    notes: tuple[str, ...] = (
        "every step gets one batch that was made before the epoch: an upper bound and no loader; ids and bytes are "
        "those of the samples in whose place it stands",
    )

    @takes_options(LoaderOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Make the batch; raise LoaderConfigError for an argument, SampleError for a sample that cannot be loaded.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        super().__init__(samples, LoaderOptions(**keywords))
        self._pipeline = as_pipeline(transform)
        deviations = np.abs(samples.sizes - np.median(samples.sizes))
        usual: list[int] = np.argsort(deviations, kind="stable").tolist()
        batch_size = self._options.batch_size
        size = min(batch_size, len(self))
        self._whole = self._load(usual[:size])
        rest = len(self) % batch_size
        self._last = self._load(usual[:rest]) if 0 < rest < size else self._whole

    def _batches(self, epoch: int) -> Iterator[Batch]:
        order, size = self._share.order(epoch), self._options.batch_size
        for start in range(0, len(order), size):
            if self._closed:
                raise LoaderError("the loader is closed: make a new one")
            ids = order[start : start + size]
            yield self._batch(ids, self._whole if start + size <= len(order) else self._last)

    def close(self) -> None:
        """End the epoch that is under way."""
        self._closed = True

    def _load(self, ids: list[int]) -> Tensors:
        seed = self._options.seed
        items = [load_item(self._pipeline, self._samples, i, seed=seed, epoch=0) for i in ids]
        tensors = Tensors(*collate_items(self._pipeline, self._samples, items))
        return tensors.each(lambda tensor: tensor.to(self._device))
