"""The device of batches: checked once, and copied to on a stream beside that of the training step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from loaders.base import Batch
from loaders.errors import LoaderConfigError
from loaders.pipeline import Tensors

T = TypeVar("T", Tensors, Batch)


@dataclass(frozen=True, slots=True)
class InTransfer(Generic[T]):
    """Tensors, or a batch, whose copy to the device was started."""

    held: T
    done: torch.cuda.Event | None
    """Comes when the copy is done; None where there was nothing to copy."""

    def wait(self) -> T:
        """Return them for use on the current stream, which waits for the copy; the calling thread does not."""
        if self.done is not None:
            current = torch.cuda.current_stream(self.held.data.device)
            current.wait_event(self.done)
            for tensor in _tensors(self.held):
                # Its memory belongs to the stream of the copy: it must not be used again before this one has used it.
                tensor.record_stream(current)
        return self.held


class DeviceTransfer:
    """Copies to a device through page-locked memory; on the CPU it returns what it is given."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, held: T) -> InTransfer[T]:
        """Start to copy tensors that are not on the device yet; return before it is done."""
        tensors = _tensors(held)
        if self._stream is None or all(tensor.device.type == "cuda" for tensor in tensors):
            return InTransfer(held, None)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            data, labels, *rest = (self._copied(tensor) for tensor in tensors)
            done.record(self._stream)
        extra = dict(zip(held.extra, rest, strict=True))
        if isinstance(held, Batch):
            return InTransfer(replace(held, data=data, labels=labels, extra=extra), done)
        return InTransfer(Tensors(data, labels, extra), done)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _tensors(held: Tensors | Batch) -> list[torch.Tensor]:
    return [held.data, held.labels, *held.extra.values()]


def usable_device(name: str) -> torch.device:
    """Return the device of this name; raise LoaderConfigError when it is neither the CPU nor a usable GPU."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoaderConfigError(f"device={name!r}: expected cpu or cuda") from error
    if device.type not in {"cpu", "cuda"}:
        raise LoaderConfigError(f"device={name!r}: expected cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise LoaderConfigError(f"device={name!r}: this machine has no usable GPU; use device=cpu")
    return device
