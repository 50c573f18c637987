"""What the loader and its decoding processes say to one another: short messages through pipes, all else in memory."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from loaders.pipeline import Item
from loaders.streaming.decoding.memory import SharedMemory

__all__ = ["Answer", "Done", "Job", "Part", "dump", "load", "read_message", "write_message"]

_LENGTH: Final = struct.Struct("<I")
_ALIGNED: Final = 64


class Part(NamedTuple):
    """Where a sample lies in the memory for records."""

    sample_id: int
    label: int
    begin: int
    """Of the sample's record, or of its file where no record is whole."""
    nbytes: int
    file: int
    """Where the file begins in that."""
    file_size: int
    whole: bool
    """Whether it is a record."""


class Job(NamedTuple):
    """A part of a batch."""

    slot: int
    epoch: int
    samples: list[Part]


class Answer(NamedTuple):
    """Where in the slot's memory the outcome of a job lies."""

    refusal: str
    """Why the process can do nothing at all; usually empty."""
    at: int
    nbytes: int


class Done(NamedTuple):
    """What became of a sample."""

    item: Item | None
    """None where it failed."""
    ns: int
    """What it took from reading on."""
    why: str


class _Pickler(pickle.Pickler):
    """Leaves the elements of tensors, as those of arrays, to whoever takes buffers out of band."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.dtype != torch.bfloat16:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def dump(value: Any, memory: SharedMemory) -> tuple[int, int]:
    """Put a value into memory, its arrays and tensors beside it; return where it lies and its size in bytes."""
    buffers: list[pickle.PickleBuffer] = []
    content = io.BytesIO()
    _Pickler(content, protocol=5, buffer_callback=buffers.append).dump(value)
    raws = [buffer.raw() for buffer in buffers]
    places, at = [], 0
    for raw in raws:
        places.append((at, raw.nbytes))
        at += -(-raw.nbytes // _ALIGNED) * _ALIGNED
    whole = pickle.dumps((places, content.getbuffer().tobytes()))
    view = memory.view(at + len(whole))
    for (place, nbytes), raw in zip(places, raws, strict=True):
        view[place : place + nbytes] = raw
    view[at:] = whole
    return at, len(whole)


def load(memory: SharedMemory, at: int, nbytes: int) -> Any:
    """Return what was put into memory, with arrays and tensors that share it."""
    view = memory.view(at + nbytes)
    # Between the loader and processes of its own, which alone have this memory.
    places, content = pickle.loads(view[at:])  # noqa: S301
    return pickle.loads(content, buffers=[view[place : place + size] for place, size in places])  # noqa: S301


def write_message(descriptor: int, message: bytes) -> None:
    """Write a message into a pipe, its length first; raises BrokenPipeError."""
    left = memoryview(_LENGTH.pack(len(message)) + message)
    while left:
        left = left[os.write(descriptor, left) :]


def read_message(descriptor: int, wait: Callable[[], None] = lambda: None) -> bytes | None:
    """Return the next message of a pipe, None at its end; `wait` is called before every read."""
    head = _read(descriptor, _LENGTH.size, wait)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0], wait)


def _read(descriptor: int, nbytes: int, wait: Callable[[], None]) -> bytes | None:
    parts: list[bytes] = []
    while nbytes:
        wait()
        part = os.read(descriptor, nbytes)
        if not part:
            return None
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)
