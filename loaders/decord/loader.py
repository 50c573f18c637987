"""Decord's VideoLoader over files: it opens all of them before the first frame is decoded, and keeps them open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from loaders.base import Batch, Samples
from loaders.errors import LoaderConfigError, LoaderError
from loaders.pipeline import Pipeline, Tensors
from loaders.pipeline.video import ClipTransform
from loaders.shared.file_loader import FileLoader
from loaders.shared.options import LoaderOptions, takes_options

_IN_ORDER: Final = 0
"""VideoLoader's shuffle: files in the order in which they are given. Its own random order takes files by turns."""


class DecordLoader(FileLoader):
    """Yields the runs of frames of each clip; Decord reads ahead and decodes with as many threads as it likes."""

    notes = (
        "Decord opens all files when the first epoch begins, fails where one is damaged, and has them in one order in "
        "all epochs; how many threads decode is FFmpeg's choice",
    )

    @takes_options(LoaderOptions)
    def __init__(self, *, samples: Samples, transform: Pipeline, **keywords: Any) -> None:
        """Check the arguments; raise LoaderConfigError.

        Args:
            samples: the files.
            transform: a ClipTransform.
        """
        options = LoaderOptions(**keywords)
        super().__init__(samples, options)
        if not isinstance(transform, ClipTransform):
            raise LoaderConfigError(
                f"transform={type(transform).__name__}: Decord takes runs of frames, a ClipTransform"
            )
        if options.on_error != "raise" or options.sample_timeout_s is not None:
            raise LoaderConfigError(
                "on_error=skip and sample_timeout_s: Decord can neither leave a file out nor be timed"
            )
        self._transform = transform
        # Decord takes the paths as one text.
        self._ids = self._share.order(0)
        self._paths = [str(samples.path(int(sample_id))) for sample_id in self._ids]
        if unfit := next((path for path in self._paths if "," in path), None):
            raise LoaderConfigError(f"{unfit}: Decord takes no path with a comma; rename it")
        self._videos: Any = None

    def _batches(self, epoch: int) -> Iterator[Batch]:
        ids: list[int] = []
        clips: list[torch.Tensor] = []
        for which, runs in groupby(self._begun(), key=lambda run: int(run[1].asnumpy()[0, 0])):
            ids.append(int(self._ids[which]))
            clips.append(torch.cat([from_dlpack(frames.to_dlpack()) for frames, _ in runs]))
            if len(ids) == self._options.batch_size:
                yield self._made(ids, clips)
                ids, clips = [], []
        if ids:
            yield self._made(ids, clips)

    def _begun(self) -> Any:
        """Return the VideoLoader at the beginning of an epoch."""
        import decord

        if self._videos is not None:
            self._videos.reset()
            return self._videos
        of = self._transform
        try:
            self._videos = decord.VideoLoader(
                self._paths,
                ctx=[decord.cpu(0)],
                shape=(of.frames, of.size, of.size, 3),
                interval=of.interval,
                skip=of.skip,
                shuffle=_IN_ORDER,
            )
        except decord.DECORDError as error:
            raise LoaderError(f"Decord cannot open all of {len(self._paths)} files: {error}") from error
        return self._videos

    def _made(self, ids: list[int], clips: list[torch.Tensor]) -> Batch:
        chosen = np.array(ids, np.int64)
        labels = torch.from_numpy(self._samples.labels[chosen])
        return self._batch(chosen, Tensors(torch.stack(clips), labels, {}))

    def close(self) -> None:
        """Close all files; may be called twice."""
        self._closed = True
        self._videos = None
