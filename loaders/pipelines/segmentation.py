"""The pipeline of 3D segmentation: KiTS19's volumes, cropped and augmented (MinatoLoader, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from loaders.base import Samples
from loaders.errors import LoaderError
from loaders.pipeline import Item, Tensors, Transform, UndecodableError
from loaders.pipelines.augment3d import Cast, GaussianNoise, RandomBrightness, RandomFlip
from loaders.pipelines.crop3d import RandomCrop
from loaders.pipelines.volumes import Packed, map_array, read_packed, unpack

__all__ = ["SegmentationPipeline"]


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

    def read(self, samples: Samples, sample_id: int) -> Any:
        """Return the maps of a .npy case, or the compressed bytes of a NIfTI one; raises OSError."""
        image, labels = samples.path(sample_id), _label_path(samples, sample_id)
        if image.suffix == ".npy":
            return map_array(image), map_array(samples.root / labels)
        return read_packed(image, samples.root / labels)

    def decode(self, encoded: Any, samples: Samples, sample_id: int) -> tuple[Any, dict[str, Any]]:
        """Return float32 (1, D, H, W), normalised, and {"label": uint8 of the same shape}; raises UndecodableError."""
        if isinstance(encoded, Packed):
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
        data = torch.stack([item.data for item in items])
        return Tensors(data, torch.stack([item.target["label"] for item in items]), {})


def _label_path(samples: Samples, sample_id: int) -> str:
    paths = samples.columns.get("label_path")
    if paths is None:
        raise LoaderError(
            "the dataset has no segmentations (column label_path); choose one of volumes, kits19_small for one"
        )
    return str(paths[sample_id])
