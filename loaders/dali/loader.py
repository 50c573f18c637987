"""NVIDIA DALI over files: its own operators wherever there are any, Python operators for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from loaders.base import Batch, Samples
from loaders.dali.choose import Operators, plan_of
from loaders.dali.epoch import READER_DEPTH, DaliEpoch, device_index
from loaders.dali.failure import PipelineFailure, explained
from loaders.dali.fed import DaliFedEpoch
from loaders.dali.plan import Plan
from loaders.errors import SampleTimeoutError
from loaders.image import ImageTransform
from loaders.options import OnError, Remainder
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.shared.files import encoded_bytes
from loaders.shared.prefetcher import Prefetcher
from loaders.shared.processor import SampleProcessor
from loaders.shared.threaded_loader import ThreadedLoader

__all__ = ["DaliLoader"]

_IMAGE_NOTE: Final = (
    "DALI's operators run every step; only the crop of an image is decoded, and resized in floating point: pixels "
    "differ from PIL's by 0.2 of 255 grey levels on average"
)


class DaliLoader(ThreadedLoader):
    """Reads files with DALI, in a pipeline that lives for one epoch.

    It starts cold, as the other loaders' epochs do, reads every file of the epoch once and nothing beyond it. Images
    are read with `readers.file`. Samples of the other workloads are read by threads of this loader, which run as Python
    operators what DALI has none for, and draw all random numbers; DALI's own operators do the rest. All are on the GPU
    ("mixed" where they decode pictures) where `device` is one. Of any other pipeline all steps are Python operators,
    and DALI takes the batches in. `notes` tells which steps run where.
    """

    _name = "dali-loader"

    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        batch_size: int,
        seed: int,
        device: str = "cpu",
        num_threads: int = 2,
        prefetch_queue_depth: int = 2,
        mmap: bool = True,
        operators: Operators = "native",
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Remainder | None = None,
        sample_timeout_s: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        `num_threads` of DALI run its operators; one more reads images, and as many of this loader run Python operators
        and read whatever else. `prefetch_queue_depth` batches are under way at once, in each of the two where both are
        at work. `mmap` maps image files into memory, DALI's default, so that the decoding threads fetch their pages;
        without it the one reading thread copies file after file. `operators` "python" has threads run the whole of any
        pipeline. `rank`, `world_size` and `remainder` share the samples among ranks, see `Share`.

        `sample_timeout_s` is as `SpdlLoader` has it; of images it needs operators "python", for a read of DALI's own
        cannot be given up. So does on_error "skip", for where DALI decodes a pipeline ends with the first file that
        fails: of detection and speech it is what makes all operators Python's, which `notes` says.
        """
        transform = as_pipeline(transform)
        super().__init__(
            samples,
            device,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            sample_timeout_s=sample_timeout_s,
            on_error=on_error,
            num_threads=num_threads,
            prefetch_queue_depth=(prefetch_queue_depth, 1),
        )
        self._transform = transform
        self._depth = prefetch_queue_depth
        self._mmap = mmap
        self._end: Callable[[], None] | None = None
        self._plan: tuple[Plan, SampleProcessor] | None = None
        self.notes: tuple[str, ...] = (_IMAGE_NOTE,)
        plan = plan_of(transform, operators, on_error, sample_timeout_s)
        if plan is not None:
            self._plan = plan, SampleProcessor(samples, plan.ahead, seed, workers=num_threads, processes=False)
            self.notes = (plan.note,)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        self._stop()
        order = self._share.order(epoch)
        return self._images(order, epoch) if self._plan is None else self._fed(*self._plan, order, epoch)

    def _stop(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()

    def _images(self, order: npt.NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yield batches of images that DALI reads and decodes."""
        assert isinstance(self._transform, ImageTransform)
        if not len(order):
            return
        running = DaliEpoch(
            self._samples,
            order,
            transform=self._transform,
            batch_size=self._batch_size,
            seed=self._seed,
            epoch=epoch,
            device=self._device,
            num_threads=self._num_threads,
            prefetch_queue_depth=self._depth,
            mmap=self._mmap,
        )
        self._end = running.close
        try:
            for start in range(0, len(order), self._batch_size):
                yield self._next(running, order, start)
        finally:
            running.close()

    def _next(self, running: DaliEpoch, order: npt.NDArray[np.int64], start: int) -> Batch:
        try:
            data, ids = running.next()
        except RuntimeError as error:
            failure = str(error)
        else:
            count = min(self._batch_size, len(order) - start)
            ids, data = ids[:count], data[:count]
            labels = torch.from_numpy(self._samples.labels[ids]).to(self._device)
            return Batch(ids, data, labels, encoded_bytes(self._samples, ids))
        # Out of the handler, whose traceback would keep the pipeline and its threads alive.
        running.close()
        ends = [start + batch * self._batch_size for batch in range(1 + self._depth + READER_DEPTH + 1)]
        batches = [order[first:beyond].tolist() for first, beyond in pairwise(ends)]
        raise explained(PipelineFailure(failure, batches), self._samples, self._transform)

    def _fed(self, plan: Plan, work: SampleProcessor, order: npt.NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yield batches of samples that this loader's threads read."""
        ahead = Prefetcher(
            work,
            order,
            epoch=epoch,
            batch_size=self._batch_size,
            depth=self._depth,
            threads=self._own_threads(),
            stages=self._stages,
            on_error=self._on_error,
            timeout_s=self._timeout_s,
        )
        running = DaliFedEpoch(
            ahead,
            plan,
            batch_size=self._batch_size,
            num_threads=self._num_threads,
            device=self._device,
            device_id=device_index(self._device),
            prefetch_queue_depth=self._depth,
        )
        self._end = running.close
        try:
            while True:
                made = running.next()
                self._skip(running.failed.untold())
                if made is None:
                    return
                ids, tensors, work_s = made
                yield Batch(ids, tensors.data, tensors.labels, encoded_bytes(self._samples, ids), tensors.extra, work_s)
        except SampleTimeoutError:
            self.close()
            raise
        except PipelineFailure as error:
            failure = error
        finally:
            running.close()
        raise explained(failure, self._samples, self._transform)
