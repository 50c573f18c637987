"""Image classification with ViT-B/16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.system.values import check_count
from harness.workloads.classification import Classification

if TYPE_CHECKING:
    import torch


_PATCH: Final = 16
_LAYERS: Final = 12
_HEADS: Final = 12
_HIDDEN: Final = 768
_MLP: Final = 3072
"""Edge of a patch in pixels, and the base model's sizes (Dosovitskiy et al., ICLR 2021, table 1)."""


@dataclass(frozen=True, slots=True)
class ViTB16(Classification):
    """Training of the base vision transformer on random crops of images, in patches of 16 x 16 pixels."""

    name: str = "vit_b16"
    layers: int = _LAYERS
    """Of the encoder; fewer make the model small."""

    def __post_init__(self) -> None:
        # Named, for dataclasses with slots are made again, which super() without arguments does not know of.
        Classification.__post_init__(self)
        if self.image_size % _PATCH:
            raise ConfigError(
                f"workloads.{self.name}.image_size={self.image_size}: expected a multiple of {_PATCH}, "
                f"the edge of a patch; {self.image_size // _PATCH * _PATCH} is the nearest below"
            )
        check_count(f"workloads.{self.name}.layers", self.layers, maximum=_LAYERS)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models import VisionTransformer

        model: torch.nn.Module = VisionTransformer(
            image_size=self.image_size,
            patch_size=_PATCH,
            num_layers=self.layers,
            num_heads=_HEADS,
            hidden_dim=_HIDDEN,
            mlp_dim=_MLP,
            num_classes=self.num_classes,
        )
        return model
