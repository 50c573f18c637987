"""From raw batches to tensors: what a decoder is, and the one that decodes with PIL in threads."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from loaders.base import Batch
from loaders.errors import LoaderError
from loaders.image import ImageTransform
from loaders.pipeline import UndecodableError
from loaders.streaming.decoding.records import explain_failure
from loaders.streaming.receiver.batch import RawBatch

__all__ = ["LOOKAHEAD", "Decoder", "TorchDecoder", "host_labels"]

LOOKAHEAD = 2
"""Batches in decoding at once: one more than is needed, so that no thread waits between two."""


class Decoder(Protocol):
    """Takes raw batches and gives them back decoded, in the same order; used by one thread."""

    notes: tuple[str, ...]
    """Where its pixels differ from the other loaders'."""

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected, at most LOOKAHEAD."""
        ...

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        ...

    def collect(self) -> Batch:
        """Return the oldest batch in decoding, on the device or in memory that is pinned for its copy there.

        Raises SampleError naming the sample that cannot be decoded.
        """
        ...

    def reset(self) -> None:
        """Forget what is pending."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def host_labels(raw: RawBatch, device: torch.device) -> torch.Tensor:
    """Return a batch's labels in memory of their own, pinned where they are to go to a GPU."""
    labels = torch.from_numpy(raw.labels.copy())
    return labels.pin_memory() if device.type == "cuda" else labels


class TorchDecoder:
    """Decodes and transforms with PIL and torch, sample by sample in a pool of threads."""

    notes: tuple[str, ...] = ()

    def __init__(self, transform: ImageTransform, *, seed: int, device: torch.device, num_threads: int) -> None:
        self._transform, self._seed, self._device = transform, seed, device
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="streaming-decode")
        self._pending: deque[tuple[RawBatch, torch.Tensor, list[Future[None]]]] = deque()

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        size = self._transform.size
        data = torch.empty((len(raw), 3, size, size), pin_memory=self._device.type == "cuda")
        jobs = [
            self._pool.submit(self._decode, data[index], image, raw.epoch, sample_id)
            for index, (sample_id, image) in enumerate(zip(raw.ids.tolist(), raw.images(), strict=True))
        ]
        self._pending.append((raw, data, jobs))

    def _decode(self, out: torch.Tensor, image: memoryview, epoch: int, sample_id: int) -> None:
        out.copy_(self._transform.apply(image, seed=self._seed, epoch=epoch, sample_id=sample_id))

    def collect(self) -> Batch:
        """Return the oldest batch; raise SampleError naming the sample that cannot be decoded."""
        raw, data, jobs = self._pending.popleft()
        for job in jobs:
            try:
                job.result()
            except UndecodableError as error:
                raise self._failure(raw, error) from error
        return Batch(raw.ids, data, host_labels(raw, self._device), raw.nbytes)

    def _failure(self, raw: RawBatch, error: UndecodableError) -> LoaderError:
        return explain_failure([raw], str(error))

    def reset(self) -> None:
        """Forget what is pending."""
        while self._pending:
            for job in self._pending.popleft()[2]:
                job.cancel()

    def close(self) -> None:
        """End the threads."""
        self.reset()
        self._pool.shutdown(cancel_futures=True)
