"""One epoch of any pipeline through DALI: Python makes the batches, DALI takes them in and moves them to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import fn, pipeline_def, types

from loaders.batches_ahead import BatchesAhead, Delivered
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline import Tensors
from loaders.work import Failed

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline
else:
    Pipeline = Any

__all__ = ["DaliPythonEpoch"]

_DALI_TYPES: Final = {
    torch.float32: types.FLOAT,
    torch.float64: types.FLOAT64,
    torch.float16: types.FLOAT16,
    torch.int64: types.INT64,
    torch.int32: types.INT32,
    torch.int16: types.INT16,
    torch.int8: types.INT8,
    torch.uint8: types.UINT8,
    torch.bool: types.BOOL,
}


class DaliPythonEpoch:
    """Hands collated batches to DALI's `external_source`, each as one sample of DALI's, for their tensors may differ in
    their first dimensions.
    """

    def __init__(
        self, ahead: BatchesAhead, *, device: torch.device, device_id: int | None, prefetch_queue_depth: int
    ) -> None:
        self.failed: list[Failed] = []
        """Samples that were left out, in the order in which they failed."""
        self._ahead = ahead
        self._device, self._device_id, self._depth = device, device_id, prefetch_queue_depth
        self._under_way: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = deque()
        self._names: tuple[str, ...] = ()
        self._pipeline: Pipeline | None = None
        self._begun = self._closed = False

    def next(self) -> tuple[npt.NDArray[np.int64], Tensors, npt.NDArray[np.float64]] | None:
        """Return ids, tensors on the device, and the seconds that every sample took; None after the last batch.

        Raises SampleError naming the sample that failed, or is late, and LoaderError once closed.
        """
        if self._closed:
            raise LoaderError("this epoch was closed, or another one was begun")
        if not self._begun:
            self._begun = True
            self._build()
        if self._pipeline is None:
            return None
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        try:
            outputs = self._pipeline.run(stream)
        except StopIteration:
            return None
        ids, work_s = self._under_way.popleft()
        data, labels, *extra = (torch.utils.dlpack.from_dlpack(out.as_tensor()).squeeze(0) for out in outputs)
        return ids, Tensors(data, labels, dict(zip(self._names, extra, strict=True))), work_s

    def close(self) -> None:
        """End the pipeline; may be called twice."""
        self._closed = True
        self._pipeline = None
        self._ahead.close()

    def _build(self) -> None:
        """Build the pipeline for the kinds of tensors that the first batch has."""
        first = self._taken()
        if first is None:
            return
        self._names = tuple(first.tensors.extra)
        kinds = _each(first.tensors)
        waiting = [first]

        def source() -> list[list[npt.NDArray[Any]]]:
            collated = waiting.pop() if waiting else self._taken()
            if collated is None:
                raise StopIteration
            self._under_way.append((collated.ids, collated.work_s))
            return [[tensor.numpy()] for tensor in _each(collated.tensors)]

        self._pipeline = _graph(source, kinds, self._device, self._device_id, self._depth)

    def _taken(self) -> Any:
        while True:
            delivered: Delivered | None = self._ahead.next()
            if delivered is None:
                return None
            self.failed.extend(delivered.failed)
            if delivered.collated is not None:
                return delivered.collated


def _graph(
    source: Callable[[], Any], kinds: list[torch.Tensor], device: torch.device, device_id: int | None, depth: int
) -> Pipeline:
    for tensor in kinds:
        if tensor.dtype not in _DALI_TYPES:
            raise LoaderConfigError(f"DALI takes no tensors of {tensor.dtype}: have the pipeline yield another type")

    @pipeline_def  # type: ignore[untyped-decorator]
    def graph() -> tuple[Any, ...]:
        outputs = fn.external_source(
            source=source,
            num_outputs=len(kinds),
            batch=True,
            dtype=[_DALI_TYPES[tensor.dtype] for tensor in kinds],
            ndim=[tensor.ndim for tensor in kinds],
        )
        return tuple(output.gpu() if device.type == "cuda" else output for output in outputs)

    pipeline = graph(batch_size=1, num_threads=1, device_id=device_id, prefetch_queue_depth=depth)
    pipeline.build()
    return pipeline


def _each(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors.data, tensors.labels, *tensors.extra.values()]
