"""Image classification: ResNet-50, VGG-19 and ViT-B/16, and what these workloads have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.system.values import check_choice, check_count, check_number
from harness.workloads.base import check_labels

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.image import ImageTransform
    from loaders.pipeline.timed import TimedPipeline


STAGES: Final = ("read", "preprocess", "infer", "train")
"""Each contains the stages before it: infer is of SPDL's figure 8, the others are of EMLIO's figure 1."""
_MIN_SIZE: Final = 32
"""The networks halve their input five times."""
_VGG_BLOCKS: Final = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions between two poolings, configuration E (Simonyan and Zisserman, ICLR 2015, table 1)."""
_VGG_HIDDEN: Final = 4096
_VGG_POOLED: Final = 7
"""Edge of what the classifier takes, whatever the image's."""
_VIT_PATCH: Final = 16
_VIT_LAYERS: Final = 12
_VIT_SIZES: Final = {"num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
"""Edge of a patch in pixels, and the base model's sizes (Dosovitskiy et al., ICLR 2021, table 1)."""


@dataclass(frozen=True, slots=True)
class Classification(ABC):
    """Training of an image classifier on random crops; subclasses have the model."""

    batch_size: int
    image_size: int = 224
    """Height and width of the crops in pixels."""
    num_classes: int = 1000
    name: str = "classification"
    stage: str = "train"
    """How far a sample goes: one of STAGES. The first two have no step, infer has no backward pass."""

    def __post_init__(self) -> None:
        check_choice(f"workloads.{self.name}.stage", self.stage, STAGES)
        for key, minimum in (("batch_size", 1), ("image_size", _MIN_SIZE), ("num_classes", 2)):
            check_count(f"workloads.{self.name}.{key}", getattr(self, key), minimum=minimum)

    @property
    def input_size(self) -> int:
        """Height and width of the crops in pixels."""
        return self.image_size

    @property
    def trains(self) -> bool:
        """Whether batches go through the model."""
        return self.stage in ("infer", "train")

    @property
    def transform(self) -> ImageTransform | TimedPipeline:
        """Random resized crop, flip and normalisation, as ImageNet training has them; nothing in the stage `read`."""
        from loaders.pipeline.image import ImageTransform
        from loaders.pipeline.timed import TimedPipeline

        return TimedPipeline(0.0) if self.stage == "read" else ImageTransform(size=self.image_size)

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross entropy."""
        import torch

        return torch.nn.functional.cross_entropy(model(batch.data), batch.labels)

    def check(self, batch: Batch) -> None:
        """Raise CellError for a label that the model has no class for."""
        check_labels(self.name, batch, self.num_classes)

    def example(self) -> Batch:
        """Return noise of class 0."""
        import numpy as np
        import torch

        from loaders.base import Batch

        shape = (self.batch_size, 3, self.image_size, self.image_size)
        data = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return Batch(np.arange(shape[0]), data, torch.zeros(shape[0], dtype=torch.int64), 0)


@dataclass(frozen=True, slots=True)
class ResNet50(Classification):
    """Training of ResNet-50 (He et al., CVPR 2016) on random crops of images."""

    name: str = "resnet50"

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models import resnet50

        model: torch.nn.Module = resnet50(num_classes=self.num_classes)
        return model


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
        for channels, convolutions in _VGG_BLOCKS:
            layers += [*[self._scaled(channels)] * convolutions, "M"]
        model: nn.Module = VGG(make_layers(layers), num_classes=self.num_classes)
        if self.width != 1:
            hidden = self._scaled(_VGG_HIDDEN)
            model.classifier = nn.Sequential(
                nn.Linear(self._scaled(_VGG_BLOCKS[-1][0]) * _VGG_POOLED**2, hidden),
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


@dataclass(frozen=True, slots=True)
class ViTB16(Classification):
    """Training of the base vision transformer on random crops of images, in patches of 16 x 16 pixels."""

    name: str = "vit_b16"
    layers: int = _VIT_LAYERS
    """Of the encoder; fewer make the model small."""

    def __post_init__(self) -> None:
        # Named, for dataclasses with slots are made again, which super() without arguments does not know of.
        Classification.__post_init__(self)
        if self.image_size % _VIT_PATCH:
            raise ConfigError(
                f"workloads.{self.name}.image_size={self.image_size}: expected a multiple of {_VIT_PATCH}, "
                f"the edge of a patch; {self.image_size // _VIT_PATCH * _VIT_PATCH} is the nearest below"
            )
        check_count(f"workloads.{self.name}.layers", self.layers, maximum=_VIT_LAYERS)

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        from torchvision.models import VisionTransformer

        model: torch.nn.Module = VisionTransformer(
            image_size=self.image_size,
            patch_size=_VIT_PATCH,
            num_layers=self.layers,
            num_classes=self.num_classes,
            **_VIT_SIZES,
        )
        return model
