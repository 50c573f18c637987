"""NVIDIA DALI over files: its own operators wherever there are any, Python operators for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import torch

from loaders.arguments import check_choice
from loaders.base import Batch, Samples
from loaders.dali.detection import DetectionPlan
from loaders.dali.epoch import READER_DEPTH, DaliEpoch
from loaders.dali.external_source import DaliFedEpoch
from loaders.dali.failure import PipelineFailure, find_bad_sample
from loaders.dali.plan import NoOperatorsError, Plan, PythonPlan
from loaders.dali.segmentation import SegmentationPlan
from loaders.dali.speech import SpeechPlan
from loaders.errors import LoaderConfigError, SampleTimeoutError
from loaders.image import ImageTransform
from loaders.options import LoaderKeywords, LoaderOptions, takes_options
from loaders.pipeline import Pipeline, Tensors
from loaders.pipelines.callables import AnyTransform, as_pipeline
from loaders.pipelines.detection import DetectionPipeline
from loaders.pipelines.segmentation import SegmentationPipeline
from loaders.pipelines.speech import SpeechPipeline
from loaders.shared.file_loader import ThreadedLoader
from loaders.shared.prefetcher import Prefetcher
from loaders.shared.processor import SampleProcessor

Operators: TypeAlias = Literal["native", "python"]
"""Whose operators run a pipeline: DALI's own wherever there are any, or Python's alone."""

_PLANS: Final[dict[type, Callable[[Any], Plan]]] = {
    SegmentationPipeline: SegmentationPlan,
    DetectionPipeline: DetectionPlan,
    SpeechPipeline: SpeechPlan,
}
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
    and DALI takes the batches in. `notes` says which steps run where.
    """

    _name = "dali-loader"

    @takes_options(LoaderOptions)
    def __init__(
        self,
        *,
        samples: Samples,
        transform: AnyTransform,
        num_threads: int = 2,
        prefetch_queue_depth: int = 2,
        mmap: bool = True,
        operators: Operators = "native",
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        """Check the arguments; raise LoaderConfigError.

        Of images, `sample_timeout_s` and on_error "skip" need operators "python": a read of DALI's own cannot be given
        up, and its pipeline ends with the first file that fails. Of detection and speech, on_error "skip" makes all
        operators Python's, as `notes` says.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
            num_threads: threads of DALI that run its operators; one more reads images, and as many of this loader run
                Python operators and read everything else (default 2).
            prefetch_queue_depth: batches under way at once, in each of the two where both are at work (default 2).
            mmap: whether image files are mapped into memory, so that the decoding threads fetch their pages, or copied
                by the one reading thread (default True).
            operators: "native", DALI's own wherever there are any, or "python", by which threads run the whole of any
                pipeline (default "native").
        """
        options = LoaderOptions(**keywords)
        super().__init__(samples, options, num_threads=num_threads, prefetch_queue_depth=(prefetch_queue_depth, 1))
        self._transform = transform = as_pipeline(transform)
        self._depth, self._mmap = prefetch_queue_depth, mmap
        self._end: Callable[[], None] | None = None
        self._plan: tuple[Plan, SampleProcessor] | None = None
        self.notes: tuple[str, ...] = (_IMAGE_NOTE,)
        plan = _plan_of(transform, operators, options)
        if plan is not None:
            self._plan = plan, SampleProcessor(samples, plan.ahead, options.seed, workers=num_threads, processes=False)
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
            options=self._options,
            epoch=epoch,
            device=self._device,
            num_threads=self._num_threads,
            prefetch_queue_depth=self._depth,
            mmap=self._mmap,
        )
        self._end = running.close
        try:
            for start in range(0, len(order), self._options.batch_size):
                yield self._next(running, order, start)
        finally:
            running.close()

    def _next(self, running: DaliEpoch, order: npt.NDArray[np.int64], start: int) -> Batch:
        try:
            data, ids = running.next()
        except RuntimeError as error:
            failure = str(error)
        else:
            count = min(self._options.batch_size, len(order) - start)
            ids, data = ids[:count], data[:count]
            labels = torch.from_numpy(self._samples.labels[ids]).to(self._device)
            return self._batch(ids, Tensors(data, labels, {}))
        # Out of the handler, whose traceback would keep the pipeline and its threads alive.
        running.close()
        ends = [start + batch * self._options.batch_size for batch in range(1 + self._depth + READER_DEPTH + 1)]
        batches = [order[first:beyond].tolist() for first, beyond in pairwise(ends)]
        raise find_bad_sample(PipelineFailure(failure, batches), self._samples, self._transform)

    def _fed(self, plan: Plan, work: SampleProcessor, order: npt.NDArray[np.int64], epoch: int) -> Iterator[Batch]:
        """Yield batches of samples that this loader's threads read."""
        ahead = Prefetcher(
            work,
            order,
            epoch=epoch,
            options=self._options,
            depth=self._depth,
            threads=self._own_threads(),
            stages=self._stages,
        )
        running = DaliFedEpoch(
            ahead,
            plan,
            batch_size=self._options.batch_size,
            num_threads=self._num_threads,
            device=self._device,
            prefetch_queue_depth=self._depth,
        )
        self._end = running.close
        try:
            while True:
                made = running.next()
                self._skip(running.failed.take_new())
                if made is None:
                    return
                yield self._batch(*made)
        except SampleTimeoutError:
            self.close()
            raise
        except PipelineFailure as error:
            failure = error
        finally:
            running.close()
        raise find_bad_sample(failure, self._samples, self._transform)


def _plan_of(pipeline: Pipeline, operators: Operators, options: LoaderOptions) -> Plan | None:
    """Return how to run a pipeline that is fed from outside; None for images, which DALI reads by itself.

    Raises LoaderConfigError for unknown operators, and for options that DALI's image pipeline cannot keep.
    """
    check_choice("operators", operators, Operators)
    if operators == "python":
        return PythonPlan(pipeline, "operators=python asks for them")
    if isinstance(pipeline, ImageTransform):
        if options.on_error == "skip":
            raise LoaderConfigError(
                "on_error=skip: DALI's image pipeline ends with a sample that fails; use raise, or operators=python"
            )
        if options.sample_timeout_s is not None:
            raise LoaderConfigError(
                "sample_timeout_s: a read of DALI's image pipeline cannot be given up; use null, operators=python, or "
                "another loader"
            )
        return None
    build = _PLANS.get(type(pipeline))
    if build is None:
        return PythonPlan(pipeline, f"there is no graph of DALI's operators for a {type(pipeline).__name__}")
    try:
        plan = build(pipeline)
    except NoOperatorsError as error:
        return PythonPlan(pipeline, str(error))
    if plan.decodes and options.on_error == "skip":
        return PythonPlan(pipeline, "on_error=skip: a pipeline in which DALI decodes ends with a sample that fails")
    return plan
