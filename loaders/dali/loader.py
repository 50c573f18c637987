"""NVIDIA DALI over files: its own operators wherever there are any, Python operators for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from loaders.base import Batch, Samples
from loaders.dali.detection import DetectionPlan
from loaders.dali.engine import DaliEngine, PipelineFailure, find_bad_sample
from loaders.dali.images import ImagePlan
from loaders.dali.plan import DaliPlan, NoOperatorsError, PythonPlan
from loaders.dali.prefetcher import Prefetcher
from loaders.dali.segmentation import SegmentationPlan
from loaders.dali.speech import SpeechPlan, scaled
from loaders.errors import LoaderConfigError, SampleTimeoutError
from loaders.pipeline import Pipeline
from loaders.pipeline.callables import AnyTransform, as_pipeline
from loaders.pipeline.detection import DetectionPipeline
from loaders.pipeline.image import ImageTransform
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.speech import SpeechPipeline
from loaders.shared.file_loader import ThreadedLoader
from loaders.shared.options import Count, LoaderOptions, takes_options
from loaders.shared.processor import SampleProcessor
from loaders.shared.threads import close_at_exit

Operators: TypeAlias = Literal["native", "python"]
"""Whose operators run a pipeline: DALI's own wherever there are any, or Python's alone."""

_AHEAD: Final = 2
"""Samples under way for each thread that reads."""
_PLANS: Final[dict[type, Callable[[Any], DaliPlan]]] = {
    SegmentationPipeline: SegmentationPlan,
    DetectionPipeline: DetectionPlan,
    SpeechPipeline: SpeechPlan,
}


class DaliOptions(LoaderOptions):
    """What every loader takes, and DALI."""

    num_threads: Count = Field(
        default=4,
        description="threads of DALI that run its own operators, decoding among them; on the CPU an even number is "
        "shared by two pipelines that take turns with the batches",
    )
    read_threads: Count | None = Field(
        default=None, description="files read at once: threads that read and run Python operators; None: num_threads"
    )
    prefetch_queue_depth: Count = Field(
        default=2,
        description="batches under way at once in each pipeline, and at least so many among the threads that read",
    )
    mmap: bool = Field(default=False, description="whether image files are mapped into memory, and not read")
    operators: Operators = Field(
        default="native",
        description='"native", DALI\'s own wherever there are any, or "python", by which threads run the whole of any '
        "pipeline",
    )
    timed_step_scale: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="factor on the times of a SpeechPipeline's LightStep and HeavyStep, which stand for steps that "
        "DALI may run faster than Python",
    )


class DaliLoader(ThreadedLoader):
    """Reads files with DALI, in pipelines that live as long as the loader, or until an epoch is broken off.

    An epoch reads every file once and nothing beyond it. Threads of this loader read samples, run as Python operators
    what DALI has none for, and draw all random numbers; DALI's own operators do the rest, on the GPU ("mixed" where
    they decode pictures) where `device` is one. Of any other pipeline all steps are Python operators, and DALI takes
    the batches in. `notes` says which steps run where.
    """

    _name = "dali-loader"

    @takes_options(DaliOptions)
    def __init__(self, *, samples: Samples, transform: AnyTransform, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        Of images, on_error "skip" needs operators "python": DALI's pipeline ends with the first file that fails. Of
        detection and speech, on_error "skip" makes all operators Python's, as `notes` says.

        Args:
            samples: the files.
            transform: a pipeline, or a callable on the decoded sample.
        """
        options = DaliOptions(**keywords)
        readers = options.read_threads or options.num_threads
        super().__init__(samples, options, num_threads=readers)
        transform = as_pipeline(transform)
        notes: tuple[str, ...] = ()
        if isinstance(transform, SpeechPipeline):
            transform, notes = scaled(transform, options.timed_step_scale)
        self._transform = transform
        # As many samples again as are being read, so that every thread has one when it is done with another.
        self._depth = max(options.prefetch_queue_depth, math.ceil(_AHEAD * readers / options.batch_size))
        plan = _plan_of(transform, options)
        self.notes: tuple[str, ...] = (plan.note, *notes)
        self._work = SampleProcessor(samples, plan.ahead, options.seed, workers=readers, processes=False)
        self._engine = DaliEngine(
            plan,
            batch_size=options.batch_size,
            num_threads=options.num_threads,
            device=self._device,
            prefetch_queue_depth=options.prefetch_queue_depth,
        )
        close_at_exit(self)

    def _batches(self, epoch: int) -> Iterator[Batch]:
        engine = self._engine
        engine.end()
        ahead = Prefetcher(
            self._work,
            self._share.order(epoch),
            epoch=epoch,
            options=self._options,
            depth=self._depth,
            threads=self._own_threads(),
            stages=self._stages,
        )
        engine.begin(ahead)
        try:
            while True:
                made = engine.next()
                self._skip(engine.failed.take_new())
                if made is None:
                    return
                yield self._batch(*made)
        except SampleTimeoutError:
            self.close()
            raise
        except PipelineFailure as error:
            failure = error
        finally:
            engine.end(ahead)
        raise find_bad_sample(failure, self._samples, self._transform)

    def _stop(self) -> None:
        self._engine.close()


def _plan_of(pipeline: Pipeline, options: DaliOptions) -> DaliPlan:
    """Return how to run a pipeline.

    Raises LoaderConfigError for options that DALI's image pipeline cannot keep.
    """
    if options.operators == "python":
        return PythonPlan(pipeline, "operators=python asks for them")
    if isinstance(pipeline, ImageTransform):
        if options.on_error == "skip":
            raise LoaderConfigError(
                "on_error=skip: DALI's image pipeline ends with a sample that fails; use raise, or operators=python"
            )
        return ImagePlan(pipeline, mmap=options.mmap)
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
