"""Image classification with VGG-19."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.system.values import check_number
from harness.workloads.classification import Classification

if TYPE_CHECKING:
    import torch


_BLOCKS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions between two poolings, configuration E (Simonyan and Zisserman, ICLR 2015, table 1)."""
_HIDDEN: Final = 4096
_POOLED: Final = 7
"""Edge of what the classifier takes, whatever the image's."""


@dataclass(frozen=True, slots=True)
class VGG19(Classification):
    """Training of VGG-19 on random crops of images, as in EMLIO's figure 9; without batch normalisation."""

    name: str = "vgg19"
    width: float = 1.0
    """Of all channels and hidden units; less than 1 makes the model small."""

    def __post_init__(self) -> None:
        # Named, for dataclasses with slots are made again, which super() without arguments does not know of.
        Classification.__post_init__(self)
        check_number(f"workloads.{self.name}.width", self.width, above=0, maximum=1)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torch import nn
        from torchvision.models.vgg import VGG, make_layers

        layers: list[str | int] = []
        for channels, convolutions in _BLOCKS:
            layers += [*[self._scaled(channels)] * convolutions, "M"]
        model: nn.Module = VGG(make_layers(layers), num_classes=self.num_classes)
        if self.width != 1:
            hidden = self._scaled(_HIDDEN)
            model.classifier = nn.Sequential(
                nn.Linear(self._scaled(_BLOCKS[-1][0]) * _POOLED**2, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(),
                nn.Linear(hidden, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(),
                nn.Linear(hidden, self.num_classes),
            )
        return model

    def _scaled(self, channels: int) -> int:
        return max(1, math.ceil(channels * self.width))
