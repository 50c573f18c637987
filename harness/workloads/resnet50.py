"""Image classification with ResNet-50."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from loaders.image import ImageTransform

__all__ = ["ResNet50"]

_SMALLEST: Final = 32
"""The network halves its input five times."""


@dataclass(frozen=True, slots=True)
class ResNet50:
    """Training of ResNet-50 (He et al., CVPR 2016) on random crops of images."""

    batch_size: int
    image_size: int = 224
    """Height and width of the crops in pixels."""
    num_classes: int = 1000
    name: str = "resnet50"

    def __post_init__(self) -> None:
        for key, least in (("batch_size", 1), ("image_size", _SMALLEST), ("num_classes", 2)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"workloads.{self.name}.{key}={value!r}: expected a whole number, {least} or more")

    @property
    def transform(self) -> ImageTransform:
        """Random resized crop, flip and normalisation, as ImageNet training has them."""
        from loaders.image import ImageTransform

        return ImageTransform(size=self.image_size)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models import resnet50

        model: torch.nn.Module = resnet50(num_classes=self.num_classes)
        return model
