"""Tensors copied to a GPU by a thread that is not the training step's, on a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loaders.pipeline import Tensors

__all__ = ["Copied", "SideCopy"]


@dataclass(frozen=True, slots=True)
class Copied:
    """Tensors whose copy to the device was started."""

    tensors: Tensors
    done: torch.cuda.Event | None
    """Comes when the copy is done; None where there was nothing to copy."""

    def land(self) -> Tensors:
        """Return the tensors for use on the current stream, which waits for the copy; the calling thread does not."""
        if self.done is not None:
            current = torch.cuda.current_stream(self.tensors.data.device)
            current.wait_event(self.done)
            for tensor in _each(self.tensors):
                # Its memory belongs to the side stream: it must not be used again before this one is done with it.
                tensor.record_stream(current)
        return self.tensors


class SideCopy:
    """Copies to a device through page-locked memory; on the CPU it hands tensors on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, tensors: Tensors) -> Copied:
        """Start to copy; returns before it is done."""
        if self._stream is None:
            return Copied(tensors, None)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            data, labels, *rest = (tensor.pin_memory().to(self._device, non_blocking=True) for tensor in _each(tensors))
            done.record(self._stream)
        return Copied(Tensors(data, labels, dict(zip(tensors.extra, rest, strict=True))), done)


def _each(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors.data, tensors.labels, *tensors.extra.values()]
