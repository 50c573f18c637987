"""The textbook's training loop (Code 8.5.1): loads and steps that last as long as it says, and do nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import CellError
from harness.system.values import check_count, check_number

if TYPE_CHECKING:
    import torch

    from loaders.base import Batch
    from loaders.pipeline.timed import TimedPipeline


_CLASSES = 1000
"""As many as any generated set of images has; the files of such a set are read."""


@dataclass(frozen=True, slots=True)
class Textbook:
    """Loads that sleep, before a model of one layer; the emulated step of 10 ms is what the textbook's loop has."""

    load_ms: float = 28.0
    """Time of one load, a whole batch (LOAD_MS of Code 8.5.1)."""
    overlapping_loads: int | None = None
    """Loads that may overlap whatever the number of workers (Exercise 8.5.2 has two); None for all."""
    batch_size: int = 1
    name: str = "textbook"

    def __post_init__(self) -> None:
        check_count(f"workloads.{self.name}.batch_size", self.batch_size)
        if self.overlapping_loads is not None:
            check_count(f"workloads.{self.name}.overlapping_loads", self.overlapping_loads)
        check_number(f"workloads.{self.name}.load_ms", self.load_ms, above=0, unit="milliseconds")

    @property
    def input_size(self) -> int | None:
        """None: a sample has no edge."""
        return None

    @property
    def transform(self) -> TimedPipeline:
        """A pipeline that sleeps as long as a load lasts."""
        from loaders.pipeline.timed import TimedPipeline

        return TimedPipeline(self.load_ms / 1e3 / self.batch_size, self.overlapping_loads)

    def model(self) -> torch.nn.Module:
        """Return one linear layer."""
        import torch

        return torch.nn.Linear(1, _CLASSES)

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the cross entropy."""
        import torch

        return torch.nn.functional.cross_entropy(model(batch.data), batch.labels)

    def check(self, batch: Batch) -> None:
        """Raise CellError for a label beyond the model's classes."""
        if (highest := int(batch.labels.max())) >= _CLASSES:
            raise CellError(f"workload {self.name}: a sample has label {highest}; expected at most {_CLASSES - 1}")

    def example(self) -> Batch:
        """Return files of no length."""
        import numpy as np
        import torch

        from loaders.base import Batch

        count = self.batch_size
        return Batch(np.arange(count), torch.zeros(count, 1), torch.zeros(count, dtype=torch.int64), 0)
