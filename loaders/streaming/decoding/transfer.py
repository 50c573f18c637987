"""Batches on their way from pinned memory to a GPU, on a stream of their own beside the training step's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from loaders.base import Batch

__all__ = ["InFlight", "SideStream"]


@dataclass(frozen=True, slots=True)
class InFlight:
    """A batch whose copy to the device was started."""

    batch: Batch
    copied: torch.cuda.Event | None
    """Comes when the copy is done; None where there was nothing to copy."""

    def land(self) -> Batch:
        """Return the batch for use on the current stream, which waits for the copy; the calling thread does not."""
        if self.copied is not None:
            current = torch.cuda.current_stream(self.batch.data.device)
            current.wait_event(self.copied)
            # Its memory belongs to the side stream: it must not be used again before this one is done with it.
            for tensor in (self.batch.data, self.batch.labels, *self.batch.extra.values()):
                tensor.record_stream(current)
        return self.batch


class SideStream:
    """Copies batches to a device while the training step computes; on the CPU it hands them on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, batch: Batch) -> InFlight:
        """Start to copy what is not on the device yet."""
        if self._stream is None or batch.data.device.type == batch.labels.device.type == "cuda":
            return InFlight(batch, None)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            data = batch.data.to(self._device, non_blocking=True)
            labels = batch.labels.to(self._device, non_blocking=True)
            extra = {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.extra.items()}
            copied.record(self._stream)
        return InFlight(replace(batch, data=data, labels=labels, extra=extra), copied)
