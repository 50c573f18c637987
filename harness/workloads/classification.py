"""The common part of workloads that classify images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.system.values import check_choice, check_count
from harness.workloads.base import check_labels

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.image import ImageTransform
    from loaders.pipeline.timed import TimedPipeline


STAGES: Final = ("read", "preprocess", "train")
"""Of EMLIO's figure 1, each of which contains those before it."""
_MIN_SIZE: Final = 32
"""The networks halve their input five times."""


@dataclass(frozen=True, slots=True)
class Classification(ABC):
    """Training of an image classifier on random crops; subclasses have the model."""

    batch_size: int
    image_size: int = 224
    """Height and width of the crops in pixels."""
    num_classes: int = 1000
    name: str = "classification"
    stage: str = "train"
    """How far a sample goes: read, preprocess or train. The first two have no training step."""

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
        """Whether batches are trained on."""
        return self.stage == "train"

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
