"""Classification of video clips, as SPDL's comparison with Decord reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.system.values import check_count
from harness.workloads.base import check_labels

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.video import ClipTransform


@dataclass(frozen=True, slots=True)
class VideoClips:
    """Training of a 3D ResNet-18 (Tran et al., CVPR 2018) on runs of frames; a sample is all runs of one clip."""

    batch_size: int
    image_size: int = 224
    """Height and width of the frames in pixels."""
    frames: int = 8
    """Frames of a run."""
    interval: int = 5
    """Frames that are left out between two frames of a run."""
    skip: int = 50
    """Frames that are left out between two runs."""
    num_classes: int = 400
    name: str = "video"

    def __post_init__(self) -> None:
        for key, least in (("batch_size", 1), ("image_size", 16), ("frames", 1), ("interval", 0), ("skip", 0)):
            check_count(f"workloads.{self.name}.{key}", getattr(self, key), minimum=least)
        check_count(f"workloads.{self.name}.num_classes", self.num_classes, minimum=2)

    @property
    def input_size(self) -> int:
        """Height and width of the frames in pixels."""
        return self.image_size

    @property
    def transform(self) -> ClipTransform:
        """Decoding of the frames that are taken, and their resizing."""
        from loaders.pipeline.video import ClipTransform

        return ClipTransform(self.image_size, self.frames, self.interval, self.skip)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models.video import r3d_18

        model: torch.nn.Module = r3d_18(num_classes=self.num_classes)
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross entropy; the model takes the frames as floats, (n, 3, frames, height, width)."""
        import torch

        return torch.nn.functional.cross_entropy(model(batch.data.permute(0, 4, 1, 2, 3).float() / 255), batch.labels)

    def check(self, batch: Batch) -> None:
        """Raise CellError for a label that the model has no class for."""
        check_labels(self.name, batch, self.num_classes)

    def example(self) -> Batch:
        """Return one run of black frames of class 0 for each sample."""
        import numpy as np
        import torch

        from loaders.base import Batch

        shape = (self.batch_size, self.frames, self.image_size, self.image_size, 3)
        labels = torch.zeros(shape[0], dtype=torch.int64)
        return Batch(np.arange(shape[0]), torch.zeros(shape, dtype=torch.uint8), labels, 0)
