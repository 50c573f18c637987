"""A decoding process: takes jobs from standard input, pixels go to shared memory, it ends when the input does.

Messages both ways are their length in bytes and then the message: first the pickled transform and seed, then jobs
in msgpack, each answered with why it failed, or with an empty text.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
from typing import Any, BinaryIO

import msgpack
import numpy as np
import torch

from loaders.image import ImageTransform
from loaders.pipeline import UndecodableError

__all__ = ["LENGTH", "main", "pixel_bytes"]

LENGTH = struct.Struct("<I")
"""Comes before every message."""


def pixel_bytes(transform: ImageTransform) -> int:
    """Return the bytes of one transformed image."""
    return 4 * 3 * transform.size * transform.size


class _Mapped:
    """Shared memory that is mapped again when it has grown."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def view(self) -> memoryview:
        size = os.fstat(self._descriptor).st_size
        if self._map is None or len(self._map) != size:
            self._map = mmap.mmap(self._descriptor, size)
        return memoryview(self._map)


def main(descriptors: list[int]) -> None:
    """Decode until standard input ends; memory for encoded images and for pixels takes turns in `descriptors`."""
    torch.set_num_threads(1)
    memory = [_Mapped(descriptor) for descriptor in descriptors]
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    first = _read(jobs)
    if first is None:
        return
    # From the process that started this one, through a pipe that only the two have.
    transform, seed = pickle.loads(first)  # noqa: S301
    while (message := _read(jobs)) is not None:
        slot, epoch, row, ids, begins, sizes = msgpack.unpackb(message)
        images, pixels = memory[2 * slot].view(), memory[2 * slot + 1].view()
        failure = _decode(images, pixels, transform, seed, epoch, row, zip(ids, begins, sizes, strict=True))
        answer = msgpack.packb(failure)
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _decode(
    images: memoryview, pixels: memoryview, transform: ImageTransform, seed: int, epoch: int, row: int, samples: Any
) -> str:
    """Decode samples into the rows from `row` on; return why that failed."""
    size = transform.size
    whole = len(pixels) // pixel_bytes(transform)
    rows = np.frombuffer(pixels, np.float32, whole * 3 * size * size).reshape(whole, 3, size, size)
    try:
        for place, (sample_id, begin, nbytes) in enumerate(samples, row):
            image = images[begin : begin + nbytes]
            rows[place] = transform.apply(image, seed=seed, epoch=epoch, sample_id=sample_id).numpy()
    except UndecodableError as error:
        return str(error)
    return ""


def _read(file: BinaryIO) -> bytes | None:
    """Return the next message, None at the end."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message = file.read(LENGTH.unpack(head)[0])
    return message if len(message) == LENGTH.unpack(head)[0] else None


if __name__ == "__main__":
    try:
        main([int(argument) for argument in sys.argv[1:]])
    except BrokenPipeError:  # nobody wants the answer any more
        os._exit(0)
