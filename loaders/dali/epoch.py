"""One epoch over image files as a DALI pipeline, which reads what the epoch needs and nothing beyond."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import fn, pipeline_def

from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.image import ImageTransform
from loaders.options import LoaderOptions
from loaders.shared.compat import end_pipeline
from loaders.shared.dali_images import dali_transform, device_index

if TYPE_CHECKING:
    from nvidia.dali.pipeline import Pipeline
else:
    Pipeline = Any


READER_DEPTH: Final = 1
"""Batches that the file reader holds ready beside those under way in the pipeline; DALI's default."""

_PADDING_ID: Final = -1
_PADDING_IMAGE: Final = b"P6 1 1 255\n\x00\x00\x00"
"""A portable pixmap of one black pixel."""


class DaliEpoch:
    """The pipeline of one epoch; its threads end when it is closed.

    DALI's reader goes round without end and reads ahead of the last batch, which over a slow mount is time and
    traffic that no epoch asked for. So the list of files is padded with an image that lies in memory, and the
    draws of the crops, one row of them per batch, end the epoch.
    """

    def __init__(
        self,
        samples: Samples,
        order: npt.NDArray[np.int64],
        *,
        transform: ImageTransform,
        options: LoaderOptions,
        epoch: int,
        device: torch.device,
        num_threads: int,
        prefetch_queue_depth: int,
        mmap: bool,
    ) -> None:
        """Build the pipeline and start it; raise LoaderError where the root of the samples cannot be opened.

        Args:
            samples: the files.
            order: ids of the epoch's samples in their order, shape (n,).
            transform: what the graph does to an image.
            options: the loader's; of these the batch size and the seed.
            epoch: its number.
            device: where images are in the end.
            num_threads: threads that decode.
            prefetch_queue_depth: batches under way at once.
            mmap: whether files are mapped into memory, and not read.
        """
        batch_size, seed = options.batch_size, options.seed
        self._device = device
        self._pipeline: Pipeline | None = None
        try:
            self._root = os.open(samples.root, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise LoaderError(f"the samples' folder {samples.root} cannot be opened: {error.strerror}") from error
        self._padding = os.memfd_create("padding.ppm")
        os.write(self._padding, _PADDING_IMAGE)

        batches = -(-len(order) // batch_size)
        padding = (batches + READER_DEPTH + 1) * batch_size - len(order)
        files = [samples.paths[sample_id] for sample_id in order] + [f"/proc/self/fd/{self._padding}"] * padding
        labels = [*order.tolist(), *[_PADDING_ID] * padding]

        def draws() -> Iterator[npt.NDArray[np.float64]]:
            for start in range(0, len(order), batch_size):
                ids = order[start : start + batch_size]
                rows = transform.draws(seed=seed, epoch=epoch, ids=ids)
                yield np.pad(rows, ((0, batch_size - len(ids)), (0, 0)))

        @pipeline_def  # type: ignore[untyped-decorator]
        def graph() -> tuple[object, object]:
            encoded, ids = fn.readers.file(
                # Looked up through the descriptor so that `close` can take the folder away: see there.
                file_root=f"/proc/self/fd/{self._root}",
                files=files,
                labels=labels,
                prefetch_queue_depth=READER_DEPTH,
                dont_use_mmap=not mmap,
            )
            row = fn.external_source(source=draws(), ndim=1)
            return dali_transform(encoded, transform, device.type, draws=row), ids

        try:
            self._pipeline = graph(
                batch_size=batch_size,
                num_threads=num_threads,
                device_id=device_index(device),
                prefetch_queue_depth=prefetch_queue_depth,
            )
            self._pipeline.build()
        except BaseException:
            self.close()
            raise

    def next(self) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """Return the next batch's images and ids, the last ones padded to the batch size.

        Raises RuntimeError as DALI does, which ends the pipeline, and LoaderError once it is closed.
        """
        if self._pipeline is None:
            raise LoaderError("this epoch was closed, or another one was started")
        # The consumer's stream, so that no copy and no device-wide wait stands between DALI and the step.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        images, ids = self._pipeline.run(stream)
        return torch.utils.dlpack.from_dlpack(images.as_tensor()), np.array(ids.as_tensor(), np.int64).reshape(-1)

    def close(self) -> None:
        """End the pipeline; may be called twice.

        A pipeline ends only after the batches under way, minutes over a far mount. With another file in the
        place of the samples' folder the reader's next look-up fails at once, and the batches with it.
        """
        if self._root < 0:
            return
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self._root, inheritable=False)
        os.close(null)
        pipeline, self._pipeline = self._pipeline, None
        end_pipeline(pipeline)
        os.close(self._root)
        os.close(self._padding)
        self._root = -1
