"""The same batch again and again: the upper bound of what any loader can give (SPDL, section 6.3)."""

from __future__ import annotations

from collections.abc import Iterator

from loaders.base import Batch, Samples
from loaders.errors import LoaderError, SampleError
from loaders.options import LoaderOptions
from loaders.pipeline import Pipeline, Tensors, load_item
from loaders.shared.file_loader import FileLoader


class FixedBatchLoader(FileLoader):
    """Reads and transforms one batch when it is made, and yields it at every step of every epoch.

    Batches have the ids and the byte counts of another loader's batches; their data are those of the first samples.
    """

    notes: tuple[str, ...] = (
        "every step gets one batch that was made before the epoch: an upper bound and no loader; ids and bytes are "
        "those of the samples in whose place it stands",
    )

    def __init__(
        self, *, samples: Samples, transform: Pipeline, batch_size: int, seed: int, device: str = "cpu"
    ) -> None:
        """Make the batch; raise LoaderConfigError for an argument, SampleError for a sample that cannot be loaded."""
        super().__init__(samples, LoaderOptions(batch_size, seed, device, rank=0, world_size=1))
        size = min(batch_size, len(samples))
        self._whole = self._load(transform, size)
        rest = len(samples) % batch_size
        self._last = self._load(transform, rest) if 0 < rest < size else self._whole

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

    def _load(self, transform: Pipeline, size: int) -> Tensors:
        seed = self._options.seed
        items = [load_item(transform, self._samples, i, seed=seed, epoch=0) for i in range(size)]
        try:
            tensors = Tensors(*transform.collate(items))
        except Exception as error:
            raise SampleError(f"samples 0 to {size - 1} cannot be collated: {error}") from error
        return tensors.each(lambda tensor: tensor.to(self._device))
