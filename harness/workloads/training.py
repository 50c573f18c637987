"""A real training step, on a GPU or the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from harness.workloads.gradients import SynchronisedModel
from harness.workloads.published import BoardPower

if TYPE_CHECKING:
    from harness.workloads.base import Workload
    from loaders.base import Batch


_LEARNING_RATE: Final = 0.01
_MOMENTUM: Final = 0.9
_WARM_UP_STEPS: Final = {"cuda": 3, "cpu": 1}


class TrainingStep:
    """Forward, the workload's loss, backward and a step of SGD with momentum; of inference, the first two.

    On CUDA in bfloat16 (autocast), with channels last for images, as training is usually run there.
    """

    emulated = False
    citation: str | None = None
    power: BoardPower | None = None
    span_ns: tuple[int, int] | None = None

    def __init__(self, workload: Workload, device: str, seed: int, *, synchronised: bool = False) -> None:
        self.kind = self.device = device
        self.label = "cpu" if device == "cpu" else f"cuda: {torch.cuda.get_device_name()}"
        self.losses: list[torch.Tensor] = []
        """The loss of every step since the warm-up, each a scalar on the device."""
        self._workload = workload
        # Weights are drawn on the CPU, so that a seed means the same ones on every device.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = workload.model()
        self._infers = getattr(workload, "stage", "") == "infer"
        self._model = model.to(device).train(not self._infers)
        if device == "cuda" and all(weight.ndim < 5 for weight in self._model.parameters()):  # volumes have another
            self._model = self._model.to(memory_format=torch.channels_last)
        self._gradients = SynchronisedModel(self._model, device) if synchronised else None
        if self._gradients is not None:
            self._model = self._gradients.module
        self.gradient_bytes = self._gradients.nbytes if self._gradients is not None else None
        self.sync_ns: int | None = None
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM)

    def __call__(self, batch: Batch) -> None:
        """Train on one batch; returns when the device is done.

        Raises CellError for a batch that the model cannot take.
        """
        self._workload.check(batch)
        self.losses.append(self._train(batch))

    def idle(self) -> None:
        """Take part in a step of the other ranks without samples: with gradients of 0, as DDP's join context does."""
        self._train(self._made_up(), weight=0.0)

    def warm_up(self) -> None:
        """Train on a made-up batch of the workload's size, so that memory is allocated and kernels are chosen."""
        there = self._made_up()
        for _ in range(_WARM_UP_STEPS[self.kind]):
            self._train(there)

    def _made_up(self) -> Batch:
        made_up = self._workload.example()
        return replace(
            made_up,
            data=made_up.data.to(self.device),
            labels=made_up.labels.to(self.device),
            extra={name: tensor.to(self.device) for name, tensor in made_up.extra.items()},
        )

    def _train(self, batch: Batch, weight: float = 1.0) -> torch.Tensor:
        if self.device == "cuda" and batch.data.ndim == 4:
            batch = replace(batch, data=batch.data.to(memory_format=torch.channels_last, non_blocking=True))
        self._optimizer.zero_grad(set_to_none=True)
        half = torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda")
        with torch.inference_mode(self._infers), half:
            loss = self._workload.loss(self._model, batch)
        if not self._infers:
            if self._gradients is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self.sync_ns = self._gradients.backward(weight * loss)
            self._optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return loss.detach()
