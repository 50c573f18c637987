"""The interface of a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from harness.errors import CellError

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline import Pipeline


class Workload(Protocol):
    """A model, its batch, its loss and the pipeline of its samples; a frozen dataclass that Hydra makes."""

    @property
    def name(self) -> str:
        """The model's usual name in lower case, by which published step times are found."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples of a training step."""
        ...

    @property
    def input_size(self) -> int | None:
        """Edge of a sample as the model takes it, in pixels or voxels; None where samples differ in length."""
        ...

    @property
    def transform(self) -> Pipeline:
        """The pipeline that a loader runs on a sample."""
        ...

    def model(self) -> torch.nn.Module:
        """Return the model with fresh weights, on the CPU."""
        ...

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch that is on the model's device, a scalar."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise CellError for a batch that the model cannot take, for example a label without a class."""
        ...

    def example(self) -> Batch:
        """Return a made-up batch of the workload's size on the CPU, the same every time."""
        ...


def check_labels(name: str, batch: Batch, num_classes: int) -> None:
    """Raise CellError for a label of a batch that workload `name` has no class for.

    On CUDA the loss would end the whole context instead of raising.
    """
    highest = int(batch.labels.max()) if batch.labels.numel() else 0
    if highest >= num_classes:
        raise CellError(
            f"workload {name}: a sample has label {highest}, and num_classes={num_classes}; "
            "set num_classes to the dataset's number of classes"
        )
