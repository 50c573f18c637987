"""A real training step, on a GPU or the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from harness.errors import CellError
from harness.workloads.published import BoardPower

if TYPE_CHECKING:
    from harness.workloads.base import Workload
    from loaders.base import Batch

__all__ = ["TrainingStep"]

_LEARNING_RATE: Final = 0.01
_MOMENTUM: Final = 0.9
_WARM_UP_STEPS: Final = {"cuda": 3, "cpu": 1}


class TrainingStep:
    """Forward, cross entropy, backward and a step of SGD with momentum.

    On CUDA in bfloat16 (autocast) with channels last, as ImageNet training is usually run there.
    """

    emulated = False
    citation: str | None = None
    power: BoardPower | None = None

    def __init__(self, workload: Workload, device: str, seed: int) -> None:
        self.kind = self.device = device
        self.label = "cpu" if device == "cpu" else f"cuda: {torch.cuda.get_device_name()}"
        self._workload = workload
        self._layout = torch.channels_last if device == "cuda" else torch.contiguous_format
        # Weights are drawn on the CPU, so that a seed means the same ones on every device.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = workload.model()
        self._model = model.to(device).to(memory_format=self._layout).train()
        self._loss = torch.nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)

    def __call__(self, batch: Batch) -> None:
        """Train on one batch; returns when the device is done.

        Raises CellError for a label that the model has no class for.
        """
        highest = int(batch.labels.max())
        if highest >= self._workload.num_classes:
            # On CUDA the loss would end the whole context instead of raising.
            raise CellError(
                f"workload {self._workload.name}: a sample has label {highest}, and num_classes="
                f"{self._workload.num_classes}; set num_classes to the dataset's number of classes"
            )
        self._train(batch.data, batch.labels)

    def warm_up(self) -> None:
        """Train on random batches of the workload's size, so that memory is allocated and kernels are chosen."""
        size = self._workload.image_size
        shape = (self._workload.batch_size, 3, size, size)
        data = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        labels = torch.zeros(shape[0], dtype=torch.int64, device=self.device)
        for _ in range(_WARM_UP_STEPS[self.kind]):
            self._train(data, labels)

    def _train(self, data: torch.Tensor, labels: torch.Tensor) -> None:
        images = data.to(memory_format=self._layout, non_blocking=True)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            loss = self._loss(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
