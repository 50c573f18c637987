"""One epoch through a DALI pipeline that is fed from outside, with batches that Python threads made ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import fn, pipeline_def, types

from loaders.dali.failure import PipelineFailure
from loaders.dali.plan import Feed, Plan
from loaders.errors import LoaderError
from loaders.pipeline import Tensors
from loaders.shared.compat import end_pipeline
from loaders.shared.dali_images import device_index
from loaders.shared.prefetcher import Prefetcher
from loaders.shared.processor import Collated, Failures

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline
else:
    Pipeline = Any


_DALI_TYPES: Final = {
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
    np.dtype(np.float16): types.FLOAT16,
    np.dtype(np.int64): types.INT64,
    np.dtype(np.int32): types.INT32,
    np.dtype(np.int16): types.INT16,
    np.dtype(np.int8): types.INT8,
    np.dtype(np.uint8): types.UINT8,
    np.dtype(np.bool_): types.BOOL,
}


class DaliFedEpoch:
    """The pipeline of one epoch; its threads end when it is closed."""

    def __init__(
        self,
        ahead: Prefetcher,
        plan: Plan,
        *,
        batch_size: int,
        num_threads: int,
        device: torch.device,
        prefetch_queue_depth: int,
    ) -> None:
        self.failed = Failures()
        self._ahead, self._plan = ahead, plan
        self._batch_size, self._num_threads = batch_size, num_threads
        self._device, self._depth = device, prefetch_queue_depth
        self._under_way: deque[Collated] = deque()
        self._pipeline: Pipeline | None = None
        self._is_built = self._closed = False

    def next(self) -> tuple[npt.NDArray[np.int64], Tensors, npt.NDArray[np.float64] | None] | None:
        """Return ids, tensors on the device, and the seconds of every sample if they are known; None after the last.

        Raises SampleError naming the sample that failed, or is late; PipelineFailure where it was DALI that failed;
        and LoaderError once closed.
        """
        if self._closed:
            raise LoaderError("this epoch was closed, or another one was started")
        if not self._is_built:
            self._is_built = True
            self._build()
        if self._pipeline is None:
            return None
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        try:
            outputs = self._pipeline.run(stream)
        except StopIteration:
            return None
        except RuntimeError as error:
            failure = str(error)
        else:
            collated = self._under_way.popleft()
            made = [torch.utils.dlpack.from_dlpack(output.as_tensor()) for output in outputs]
            # DALI does not say how long its operators take for a sample.
            work_s = collated.work_s if self._plan.python_only else None
            return collated.ids, self._plan.tensors(made, collated.tensors), work_s
        # Out of the handler, whose traceback would keep the pipeline and its threads alive.
        raise PipelineFailure(failure, [each.ids.tolist() for each in self._under_way])

    def close(self) -> None:
        """End the pipeline; may be called twice."""
        self._closed = True
        pipeline, self._pipeline = self._pipeline, None
        end_pipeline(pipeline)
        self._ahead.close()

    def _build(self) -> None:
        """Build the pipeline for the kinds of arrays that the first batch has."""
        first = self._taken()
        if first is None:
            return
        waiting = [first]

        def source() -> Sequence[Sequence[npt.NDArray[np.generic]]]:
            collated = waiting.pop() if waiting else self._taken()
            if collated is None:
                raise StopIteration
            self._under_way.append(collated)
            return [list(arrays) for arrays in self._plan.feed(collated.tensors).values()]

        self._pipeline = self._graph(source, self._plan.feed(first.tensors))

    def _taken(self) -> Collated | None:
        while (delivered := self._ahead.next()) is not None:
            self.failed.extend(delivered.failed)
            if delivered.collated is not None:
                return delivered.collated
        return None

    def _graph(self, source: Callable[[], Sequence[Sequence[npt.NDArray[np.generic]]]], first: Feed) -> Pipeline:
        plan, device = self._plan, self._device.type
        kinds = [arrays[0] for arrays in first.values()]

        @pipeline_def(enable_conditionals=plan.conditional)  # type: ignore[untyped-decorator]
        def graph() -> tuple[object, ...]:
            fed = fn.external_source(
                source=source,
                num_outputs=len(kinds),
                batch=True,
                dtype=[_DALI_TYPES[kind.dtype] for kind in kinds],
                ndim=[kind.ndim for kind in kinds],
                layout=[plan.layouts.get(name, "") for name in first],
            )
            # In words that DALI can rewrite where there are conditionals: it knows no strict zip.
            return tuple(plan.graph({name: fed[index] for index, name in enumerate(first)}, device))

        pipeline = graph(
            batch_size=1 if plan.python_only else self._batch_size,
            num_threads=1 if plan.python_only else self._num_threads,
            device_id=device_index(self._device),
            prefetch_queue_depth=self._depth,
        )
        pipeline.build()
        return pipeline
