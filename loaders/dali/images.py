"""The image transform as a graph of DALI operators, behind threads that read files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaders.base import SampleSource
from loaders.dali.plan import DaliPlan, DataNode, Fed
from loaders.pipeline import Item, Target, Tensors, Transform, UndecodableError, WrappedPipeline, labels_of
from loaders.pipeline.image import ImageTransform
from loaders.shared.dali_images import dali_transform


class ImagePlan(DaliPlan):
    """Decoding and every step in DALI."""

    note = (
        "DALI's operators run decoding and every step; only the crop of an image is decoded, and resized in floating "
        "point: pixels differ from PIL's by 0.2 of 255 grey levels on average; threads of Python read files"
    )
    decodes = True
    inputs = (("encoded", (np.dtype(np.uint8), 1)), ("draws", (np.dtype(np.float64), 1)))

    def __init__(self, transform: ImageTransform, *, mmap: bool) -> None:
        """Run this transform; `mmap` says whether files are mapped into memory, and not read."""
        self._transform = transform
        self.ahead = _ImagesAhead(transform, mmap)

    def graph(self, fed: Mapping[str, DataNode], device: str) -> Sequence[DataNode]:
        """Return images, float32 of shape (3, size, size)."""
        return [dali_transform(fed["encoded"], self._transform, device, draws=fed["draws"])]


@dataclass(frozen=True)
class _ImagesAhead(WrappedPipeline):
    of: ImageTransform
    mmap: bool

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return ()

    def read(self, samples: SampleSource, sample_id: int) -> bytes | memoryview:
        path = samples.path(sample_id)
        # An empty file cannot be mapped.
        if self.mmap and path.stat().st_size:
            return np.memmap(path, np.uint8, "r").data
        return samples.read(sample_id)

    def decode(
        self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int
    ) -> tuple[npt.NDArray[np.uint8], Target]:
        if not len(encoded):
            raise UndecodableError("not a whole image: 0 bytes of no known format")
        return np.frombuffer(encoded, np.uint8), {"label": int(samples.labels[sample_id])}

    def collate(self, items: Sequence[Item]) -> Tensors:
        ids = np.array([item.id for item in items], np.int64)
        draws = self.of.draws(seed=items[0].seed, epoch=items[0].epoch, ids=ids)
        return Fed.of({"encoded": [item.data for item in items], "draws": list(draws)}, labels_of(items))
