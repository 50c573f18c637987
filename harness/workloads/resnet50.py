"""Image classification with ResNet-50."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.workloads.classification import Classification

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ResNet50(Classification):
    """Training of ResNet-50 (He et al., CVPR 2016) on random crops of images."""

    name: str = "resnet50"

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models import resnet50

        model: torch.nn.Module = resnet50(num_classes=self.num_classes)
        return model
