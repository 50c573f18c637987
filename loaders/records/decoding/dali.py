"""From raw batches to tensors through a DALI pipeline, on the CPU or on a GPU."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types

from loaders.base import Batch
from loaders.errors import LoaderError, SampleError
from loaders.pipeline import UndecodableError
from loaders.pipeline.image import ImageTransform, decode
from loaders.records.decoding.decoder import LOOKAHEAD, DecodedBatch
from loaders.records.decoding.received import read_rows
from loaders.records.raw_batch import RawBatch
from loaders.shared.dali_images import DALI_IMAGE_NOTE, dali_transform, device_index, share_threads

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline


class DaliDecoder:
    """Feeds batches to DALI pipelines in turn through `external_source`, as EMLIO's Algorithm 3 does to one."""

    notes: tuple[str, ...] = (DALI_IMAGE_NOTE,)

    def __init__(
        self, transform: ImageTransform, *, seed: int, device: torch.device, num_threads: int, batch_size: int
    ) -> None:
        self._transform, self._seed, self._device = transform, seed, device
        self._threads, self._batch_size = share_threads(num_threads, device), batch_size
        self._pending: deque[tuple[Pipeline, RawBatch]] = deque()
        self._pipelines = self._build_all()

    def _build_all(self) -> deque[Pipeline]:
        """Return the pipelines, the one whose turn it is first."""
        return deque(map(self._build, self._threads))

    def _build(self, num_threads: int) -> Pipeline:
        transform, device = self._transform, self._device.type

        @pipeline_def  # type: ignore[untyped-decorator]
        def graph() -> Any:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            draws = fn.external_source(name="draws", dtype=types.FLOAT64, ndim=1)
            return dali_transform(encoded, transform, device, draws=draws)

        pipeline = graph(
            batch_size=self._batch_size,
            num_threads=num_threads,
            device_id=device_index(self._device),
            prefetch_queue_depth=LOOKAHEAD // len(self._threads),
            # Not pipelined: a run starts when its batch is fed, not when a whole queue of batches is.
            exec_pipelined=False,
            # The dynamic executor's outputs outlive the next runs, so they are handed on without a copy.
            exec_dynamic=True,
        )
        pipeline.build()
        return pipeline

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        if not self._pipelines:
            self._pipelines = self._build_all()
        pipeline = self._pipelines[0]
        self._pipelines.rotate(-1)
        images = [np.frombuffer(image, np.uint8) for image in raw.images()]
        self._pending.append((pipeline, raw))
        pipeline.feed_input("encoded", images)
        pipeline.feed_input("draws", self._transform.draws(seed=self._seed, epoch=raw.epoch, ids=raw.ids))
        pipeline.schedule_run()

    def collect(self) -> DecodedBatch:
        """Return the oldest batch; raise SampleError naming the sample that cannot be decoded."""
        pipeline, raw = self._pending[0]
        on_gpu = self._device.type == "cuda"
        try:
            (images,) = pipeline.share_outputs(torch.cuda.current_stream(self._device) if on_gpu else None)
        except RuntimeError as error:
            suspects, failure = [batch for _, batch in self._pending], str(error)
        else:
            data = torch.utils.dlpack.from_dlpack(images.as_tensor())
            pipeline.release_outputs()
            self._pending.popleft()
            labels = torch.from_numpy(raw.labels.copy())
            return DecodedBatch(Batch(raw.ids, data, labels.pin_memory() if on_gpu else labels, raw.nbytes))
        # Out of the handler, whose traceback would keep the broken pipeline and its threads alive.
        del pipeline
        self.close()
        raise _name_sample(suspects, failure)

    def reset(self) -> None:
        """Drop the pending batches."""
        if self._pending:
            self.close()

    def interrupt(self) -> None:
        """Do nothing: DALI's operators come back by themselves."""

    def close(self) -> None:
        """End the pipelines and their threads; the next batch submitted starts others."""
        self._pending.clear()
        self._pipelines.clear()


def _name_sample(batches: list[RawBatch], message: str) -> LoaderError:
    """Return the error of the sample because of which decoding failed, or DALI's own message."""
    for raw in batches:
        for sample_id, row in zip(raw.ids.tolist(), read_rows(raw), strict=True):
            try:
                decode(row.payload)
            except UndecodableError as error:
                return SampleError(f"sample {sample_id} ({row.path}) cannot be decoded: {error}")
    return LoaderError(f"decoding failed at samples {[raw.ids.tolist() for raw in batches]}: {message}")
