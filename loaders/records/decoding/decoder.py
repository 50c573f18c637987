"""What a decoding engine is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from loaders.base import Batch
from loaders.pipeline import Tensors
from loaders.records.decoding.received import ReceivedSamples
from loaders.records.raw_batch import RawBatch
from loaders.shared.processor import Failed, Loaded, SampleProcessor

LOOKAHEAD = 2
"""Batches in decoding at once: one more than is needed, so that no thread waits between two."""


class DecodedBatch(NamedTuple):
    """What became of a raw batch."""

    batch: Batch | None
    """None where every sample of it failed."""
    failed: Sequence[Failed] = ()
    """The samples that were left out."""


class Decoder(Protocol):
    """Decodes raw batches, and returns them, in the same order; used by one thread."""

    notes: tuple[str, ...]
    """Where what it makes of a sample differs from the other loaders'."""

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected, at most LOOKAHEAD."""
        ...

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        ...

    def collect(self) -> DecodedBatch:
        """Return the oldest batch in decoding, on the device or in memory that is pinned for its copy there.

        Raises SampleError naming the sample that failed and its stage, SampleTimeoutError naming one that is late,
        WorkerError naming a process that died.
        """
        ...

    def reset(self) -> None:
        """Drop the pending batches."""
        ...

    def interrupt(self) -> None:
        """End a `collect` that another thread is in, whatever its samples do; only `close` may follow."""
        ...

    def close(self) -> None:
        """End threads and processes."""
        ...


def collate_batch(
    work: SampleProcessor,
    worker: int,
    samples: ReceivedSamples,
    loaded: Sequence[Loaded],
    failed: Sequence[Failed],
    device: torch.device,
) -> DecodedBatch:
    """Join the samples of a batch that did not fail; raise SampleError naming the one whose shape is wrong."""
    if not loaded:
        return DecodedBatch(None, failed)
    made = work.collate(worker, loaded)
    data, labels, extra = _pin(made.tensors, device)
    nbytes = sum(samples.rows[one.item.id].size for one in loaded)
    return DecodedBatch(Batch(made.ids, data, labels, nbytes, extra, made.work_s), failed)


def _pin(tensors: Tensors, device: torch.device) -> Tensors:
    """Return a batch's tensors, in pinned memory where they are to go to a GPU."""
    if device.type != "cuda":
        return tensors
    return tensors.each(torch.Tensor.pin_memory)
