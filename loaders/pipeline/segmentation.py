"""The pipeline of 3D segmentation: KiTS19's volumes, cropped and augmented (MinatoLoader, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from torch.utils.data import default_collate

from loaders.base import SampleSource
from loaders.errors import LoaderError
from loaders.pipeline import Data, Item, Target, Tensors, Transform, UndecodableError
from loaders.pipeline.augment3d import Cast, GaussianNoise, RandomBrightness, RandomFlip
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.volumes import NiftiFiles, read_array, unpack

_LABELS: Final = "label_path"


@dataclass(frozen=True, slots=True)
class SegmentationPipeline:
    """RandomCrop, RandomFlip, RandomBrightness, GaussianNoise and Cast of a volume and its labels.

    A sample is two files: the volume (`Samples.paths`) and its labels (the column `label_path`), both .npy of shape
    (1, D, H, W) as MLPerf's preprocessing leaves them, or both .nii.gz of shape (D, H, W) as KiTS19 has them.
    """

    crop: RandomCrop = field(default_factory=RandomCrop)
    flip: RandomFlip = field(default_factory=RandomFlip)
    brightness: RandomBrightness = field(default_factory=RandomBrightness)
    noise: GaussianNoise = field(default_factory=GaussianNoise)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps, in order."""
        return self.crop, self.flip, self.brightness, self.noise, Cast()

    def read(self, samples: SampleSource, sample_id: int) -> Data:
        """Return the arrays of a .npy case, not copied, or the compressed bytes of a NIfTI one.

        Raises OSError, and LoaderError for a dataset without segmentations.
        """
        if _LABELS not in samples.columns:
            raise LoaderError(
                f"the dataset has no segmentations (column {_LABELS}); choose one of volumes, kits19_small for one"
            )
        if samples.paths[sample_id].endswith(".npy"):
            return read_array(samples, sample_id), read_array(samples, sample_id, _LABELS)
        return NiftiFiles(samples.read(sample_id), samples.read(sample_id, _LABELS))

    def decode(self, encoded: Data, samples: SampleSource, sample_id: int) -> tuple[Data, Target]:
        """Return float32 (1, D, H, W), normalised, and {"label": uint8 of the same shape}; raises UndecodableError."""
        if isinstance(encoded, NiftiFiles):
            volume, labels = unpack(encoded, samples.paths[sample_id])
            return volume, {"label": labels}
        volume, labels = encoded
        for what, array, kind in (("the volume", volume, np.float32), ("its labels", labels, np.uint8)):
            if array.dtype != kind or array.ndim != 4 or array.shape[0] != 1:
                raise UndecodableError(
                    f"{what} is {array.dtype} of shape {array.shape}; expected {np.dtype(kind)} of (1, D, H, W)"
                )
        if volume.shape != labels.shape:
            raise UndecodableError(f"the volume is {volume.shape} and its labels are {labels.shape}")
        return np.asarray(volume), {"label": np.asarray(labels)}

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Return float32 volumes and uint8 labels, both of shape (n, 1, edge, edge, edge)."""
        # Unlike torch.stack, in shared memory at once where a worker of torch is to hand the batch over.
        data = default_collate([item.data for item in items])
        return Tensors(data, default_collate([item.target["label"] for item in items]), {})
