"""DALI pipelines that are built once, and fed batches of one epoch after another by Python."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import fn, pipeline_def

from loaders.base import Samples
from loaders.dali.plan import DALI_TYPES, DaliPlan, Inputs
from loaders.dali.prefetcher import Prefetcher
from loaders.errors import LoaderError, SampleError
from loaders.pipeline import Pipeline, Tensors, sample_error
from loaders.shared.compat import end_pipeline
from loaders.shared.dali_images import device_index, share_threads
from loaders.shared.processor import Collated, Failures

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline as DaliGraph
else:
    DaliGraph = Any


_SEARCHERS: Final = 16
"""Threads that read suspects again; far storage answers many reads as fast as one."""


class PipelineFailure(LoaderError):
    """DALI's message, and the ids of the batches that were under way, any of which may be at fault."""

    def __init__(self, message: str, batches: Sequence[Sequence[int]]) -> None:
        super().__init__(message)
        self.message, self.batches = message, batches


def find_bad_sample(failure: PipelineFailure, samples: Samples, pipeline: Pipeline) -> LoaderError:
    """Return the error of the sample that DALI's operators failed at, in the words of the pipeline's own decoder."""
    position = re.search(r"[Ff]ailed to decode sample #(\d+)", failure.message)
    at = int(position[1]) if position else None
    window = [sample_id for batch in failure.batches for sample_id in batch]
    named = [
        sample_id
        for batch in failure.batches
        for index, sample_id in enumerate(batch)
        if index == at or samples.paths[sample_id] in failure.message
    ]
    bad = _first_bad(samples, pipeline, [*named, *window])
    if bad is not None:
        return bad
    if at is not None and window and at < len(failure.batches[0]):
        sample_id = failure.batches[0][at]
        return SampleError(
            f"sample {sample_id} ({samples.path(sample_id)}) cannot be decoded by DALI, though the pipeline's own "
            f"decoder can: {failure.message}"
        )
    first = list(failure.batches[0]) if failure.batches else []
    return LoaderError(f"DALI's pipeline failed at samples {first}: {failure.message}")


def _first_bad(samples: Samples, pipeline: Pipeline, suspects: Iterable[int]) -> SampleError | None:
    def check(sample_id: int) -> SampleError | None:
        stage = "read"
        try:
            encoded = pipeline.read(samples, sample_id)
            stage = "decode"
            pipeline.decode(encoded, samples, sample_id)
        except Exception as error:  # noqa: BLE001 - whatever reading and decoding raise is the sample's error
            return sample_error(samples, sample_id, stage, error)
        return None

    pool = ThreadPoolExecutor(_SEARCHERS, thread_name_prefix="bad-sample-search")
    try:
        return next((error for error in pool.map(check, suspects) if error is not None), None)
    finally:
        pool.shutdown(cancel_futures=True)


class DaliEngine:
    """Pipelines that take turns, from when their inputs' types are known until they are closed."""

    def __init__(
        self, plan: DaliPlan, *, batch_size: int, num_threads: int, device: torch.device, prefetch_queue_depth: int
    ) -> None:
        """Build the pipelines if the plan states their inputs, or else with the first batch.

        They share `num_threads` of DALI; each has `prefetch_queue_depth` batches under way at once.
        """
        self.failed = Failures()
        self._plan, self._batch_size = plan, 1 if plan.python_only else batch_size
        self._threads = [1] if plan.python_only else share_threads(num_threads, device)
        self._device, self._depth = device, prefetch_queue_depth
        self._ahead: Prefetcher | None = None
        self._is_whole = False
        self._first: Collated | None = None
        self._begin_turns()
        self._pipelines = self._build_all(plan.inputs) if plan.inputs else []

    def _begin_turns(self) -> None:
        self._next, self._next_fed = 0, 0
        """The pipelines whose turn it is to return a batch, and to get one."""
        self._waiting: list[deque[Collated]] = [deque() for _ in self._threads]
        """By pipeline: batches that it gets and has not taken."""
        self._under_way: list[deque[Collated]] = [deque() for _ in self._threads]

    def begin(self, ahead: Prefetcher) -> None:
        """Begin an epoch, where none is under way."""
        self.failed, self._ahead, self._is_whole = Failures(), ahead, False
        for pipeline in self._pipelines:
            pipeline.reset()

    def next(self) -> tuple[npt.NDArray[np.int64], Tensors, npt.NDArray[np.float64] | None] | None:
        """Return ids, tensors on the device, and the seconds of every sample if they are known; None after the last.

        Raises SampleError naming the sample that failed, or is late; PipelineFailure where it was DALI that failed;
        and LoaderError once the epoch was ended.
        """
        if self._ahead is None:
            raise LoaderError("this epoch was closed, or another one was started")
        if not self._pipelines:
            self._first = self._taken()
            if self._first is None:
                return None
            feed = self._plan.feed(self._first.tensors)
            self._pipelines = self._build_all([(name, (each[0].dtype, each[0].ndim)) for name, each in feed.items()])
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        try:
            # The consumer's stream, so that no copy and no device-wide wait stands between DALI and the step.
            outputs = self._pipelines[self._next].run(stream)
        except StopIteration:
            self._is_whole = True
            return None
        except RuntimeError as error:
            failure = str(error)
        else:
            collated = self._under_way[self._next].popleft()
            self._next = (self._next + 1) % len(self._pipelines)
            # Of a capsule: of a tensor torch compares enums with DALI's, and a Ctrl-C that comes meanwhile is lost.
            at = {} if stream is None else {"stream": stream.cuda_stream or 1}
            made = [torch.utils.dlpack.from_dlpack(output.as_tensor().__dlpack__(**at)) for output in outputs]
            # DALI does not say how long its operators take for a sample.
            work_s = collated.work_s if self._plan.python_only else None
            return collated.ids, self._plan.tensors(made, collated.tensors), work_s
        # Out of the handler, whose traceback would keep the pipeline and its threads alive.
        raise PipelineFailure(failure, [each.ids.tolist() for each in self._under_way[self._next]])

    def end(self, ahead: Prefetcher | None = None) -> None:
        """End the epoch under way, or only if it is that of `ahead`; after a whole one the pipelines stay."""
        if self._ahead is None or ahead not in (None, self._ahead):
            return
        ahead, self._ahead = self._ahead, None
        if not self._is_whole:
            self._end_pipelines()
        self._begin_turns()
        ahead.close()

    def close(self) -> None:
        """End the epoch under way, and the pipelines; may be called twice."""
        self.end()
        self._end_pipelines()

    def _end_pipelines(self) -> None:
        while self._pipelines:
            end_pipeline(self._pipelines.pop())

    def _taken(self) -> Collated | None:
        while self._ahead is not None and (delivered := self._ahead.next()) is not None:
            self.failed.extend(delivered.failed)
            if delivered.collated is not None:
                return delivered.collated
        return None

    def _feed(self, turn: int) -> Sequence[Sequence[npt.NDArray[np.generic]]]:
        """Return a pipeline's next batch as DALI takes it; the pipelines get batches in turn."""
        while not self._waiting[turn]:
            collated, self._first = self._first or self._taken(), None
            if collated is None:
                raise StopIteration
            self._waiting[self._next_fed].append(collated)
            self._next_fed = (self._next_fed + 1) % len(self._threads)
        collated = self._waiting[turn].popleft()
        self._under_way[turn].append(collated)
        return [list(arrays) for arrays in self._plan.feed(collated.tensors).values()]

    def _build_all(self, inputs: Inputs) -> list[DaliGraph]:
        return [self._build(inputs, turn) for turn in range(len(self._threads))]

    def _build(self, inputs: Inputs, turn: int) -> DaliGraph:
        plan, device = self._plan, self._device.type
        names = [name for name, _ in inputs]

        def feed() -> Sequence[Sequence[npt.NDArray[np.generic]]]:
            return self._feed(turn)

        @pipeline_def(enable_conditionals=plan.conditional)  # type: ignore[untyped-decorator]
        def graph() -> tuple[object, ...]:
            fed = fn.external_source(
                source=feed,
                num_outputs=len(names),
                batch=True,
                dtype=[DALI_TYPES[kind] for _, (kind, _) in inputs],
                ndim=[ndim for _, (_, ndim) in inputs],
                layout=[plan.layouts.get(name, "") for name in names],
            )
            # In words that DALI can rewrite where there are conditionals: it knows no strict zip.
            return tuple(plan.graph({name: fed[index] for index, name in enumerate(names)}, device))

        pipeline = graph(
            batch_size=self._batch_size,
            num_threads=self._threads[turn],
            device_id=device_index(self._device),
            prefetch_queue_depth=self._depth,
        )
        pipeline.build()
        return pipeline
