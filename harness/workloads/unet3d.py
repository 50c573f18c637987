"""Segmentation of kidneys and their tumours with 3D-UNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import CellError, ConfigError
from harness.system.values import check_count, check_number
from harness.workloads.base import check_labels

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.segmentation import SegmentationPipeline


_CHANNELS: Final = 1
"""A CT volume has one."""


@dataclass(frozen=True, slots=True)
class UNet3D:
    """Training of MLPerf's variant of 3D-UNet (Çiçek et al., MICCAI 2016) on random cubes of CT volumes."""

    batch_size: int = 3
    """Table 3 of the MinatoLoader paper."""
    crop_size: int = 128
    """Edge of the cubes in voxels."""
    oversampling: float = 0.4
    """Probability of a cube that holds kidney or tumour."""
    widths: tuple[int, ...] = (32, 64, 128, 256, 320)
    """Channels of every level of the encoder; the edge is halved once for each."""
    num_classes: int = 3
    """Background, kidney, tumour."""
    name: str = "unet3d"

    def __post_init__(self) -> None:
        # Hydra gives lists; a frozen workload is compared and pickled by value.
        object.__setattr__(self, "widths", tuple(self.widths))
        for key, minimum in (("batch_size", 1), ("crop_size", 4), ("num_classes", 2)):
            check_count(f"workloads.{self.name}.{key}", getattr(self, key), minimum=minimum)
        for width in self.widths:
            check_count(f"workloads.{self.name}.widths", width)
        if not self.widths:
            raise ConfigError(f"workloads.{self.name}.widths=[]: expected at least one number of channels")
        shrink = 2 ** len(self.widths)
        # Instance norm needs more than one voxel.
        if self.crop_size % shrink or self.crop_size == shrink:
            raise ConfigError(
                f"workloads.{self.name}.crop_size={self.crop_size}: expected a multiple of {shrink}, {2 * shrink} or "
                f"more, since {len(self.widths)} levels halve it as often"
            )
        check_number(f"workloads.{self.name}.oversampling", self.oversampling, maximum=1)

    @property
    def input_size(self) -> int:
        """Edge of the cubes in voxels."""
        return self.crop_size

    @property
    def transform(self) -> SegmentationPipeline:
        """Crop, flip, brightness, noise and cast, as MLPerf's reference has them."""
        from loaders.pipeline.crop3d import RandomCrop
        from loaders.pipeline.segmentation import SegmentationPipeline

        return SegmentationPipeline(crop=RandomCrop(self.crop_size, self.oversampling))

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from harness.workloads.unet import UNet

        return UNet(self.widths, self.num_classes)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean of Dice's loss and the cross entropy."""
        from harness.workloads.unet import dice_and_cross_entropy

        return dice_and_cross_entropy(model(batch.data), batch.labels)

    def check(self, batch: Batch) -> None:
        """Raise CellError for cubes of another size, and for a label that the model has no class for."""
        expected = (len(batch), _CHANNELS, *3 * (self.crop_size,))
        for what, tensor in (("volumes", batch.data), ("labels", batch.labels)):
            if tuple(tensor.shape) != expected:
                raise CellError(
                    f"workload {self.name}: a batch's {what} are {tuple(tensor.shape)}, expected {expected}; "
                    "the dataset must be one of volumes with segmentations, such as kits19_small"
                )
        check_labels(self.name, batch, self.num_classes)

    def example(self) -> Batch:
        """Return noise that is background everywhere."""
        import numpy as np
        import torch

        from loaders.base import Batch

        shape = (self.batch_size, _CHANNELS, *3 * (self.crop_size,))
        data = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return Batch(np.arange(self.batch_size), data, torch.zeros(shape, dtype=torch.uint8), 0)
