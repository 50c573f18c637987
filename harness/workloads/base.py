"""What a workload is to the cell that trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from loaders.image import ImageTransform

__all__ = ["Workload"]


class Workload(Protocol):
    """A model, its batch, and the transform that its samples go through."""

    @property
    def name(self) -> str:
        """The model's usual name in lower case, by which published step times are found."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples of a training step."""
        ...

    @property
    def image_size(self) -> int:
        """Height and width of a sample in pixels."""
        ...

    @property
    def num_classes(self) -> int:
        """Classes that the model tells apart; labels are below it."""
        ...

    @property
    def transform(self) -> ImageTransform:
        """What a loader does to a sample after it is decoded."""
        ...

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        ...
