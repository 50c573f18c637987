"""From raw batches to tensors with PIL and torch, in processes beside this one.

Encoded images and pixels go through memory that is shared by descriptor and has no name, so nothing of it is left
when a process is killed, whichever it is. A worker ends when its standard input does.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import torch

from loaders.base import Batch
from loaders.errors import WorkerError
from loaders.image import ImageTransform
from loaders.streaming.decoding.records import explain_failure
from loaders.streaming.decoding.threads import LOOKAHEAD, host_labels
from loaders.streaming.decoding.worker import LENGTH, pixel_bytes
from loaders.streaming.receiver.batch import RawBatch

__all__ = ["ProcessDecoder"]

_GRACE_S = 5.0
"""How long a worker may take for what it is at when it is asked to end."""


class _Memory:
    """Memory that is shared with the workers and grows."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("streaming-decode", os.MFD_CLOEXEC)
        self._map: mmap.mmap | None = None

    def view(self, nbytes: int) -> memoryview:
        """Return the first bytes, after making room for them."""
        if self._map is None or len(self._map) < nbytes:
            os.ftruncate(self.descriptor, nbytes)
            self._map = mmap.mmap(self.descriptor, nbytes)
        return memoryview(self._map)[:nbytes]

    def close(self) -> None:
        self._map = None
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where one batch's images go in and its pixels come out."""

    images: _Memory
    pixels: _Memory


class _Worker:
    """A process that decodes a part of every batch."""

    def __init__(self, slots: list[_Slot], transform: ImageTransform, seed: int) -> None:
        descriptors = [memory.descriptor for slot in slots for memory in (slot.images, slot.pixels)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loaders.streaming.decoding.worker", *map(str, descriptors)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            # It has to find what this process finds, wherever that was started.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            # Ctrl-C is for the process that was started by hand.
            start_new_session=True,
        )
        self.send(pickle.dumps((transform, seed)))

    def send(self, message: bytes) -> None:
        """Send a job; raise WorkerError when the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(LENGTH.pack(len(message)) + message)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._dead() from error

    def receive(self) -> str | None:
        """Wait for the end of the oldest job; return why it failed, None if it did not."""
        assert self._process.stdout is not None
        head = self._process.stdout.read(LENGTH.size)
        if len(head) < LENGTH.size:
            raise self._dead()
        answer = self._process.stdout.read(LENGTH.unpack(head)[0])
        return msgpack.unpackb(answer) or None

    def _dead(self) -> WorkerError:
        code = self._process.wait()
        end = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        return WorkerError(f"the streaming loader's decoding process (pid {self._process.pid}) {end}")

    def hang_up(self) -> None:
        """Ask the process to end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def join(self) -> None:
        """Wait for its end."""
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ProcessDecoder:
    """Decodes every batch in several processes at once, each a part of it."""

    notes: tuple[str, ...] = ()

    def __init__(self, transform: ImageTransform, *, seed: int, device: torch.device, num_workers: int) -> None:
        """Start `num_workers` processes."""
        self._transform, self._seed, self._device, self._num_workers = transform, seed, device, num_workers
        self._slots: list[_Slot] = []
        self._workers: list[_Worker] = []
        self._pending: deque[tuple[RawBatch, _Slot, list[_Worker]]] = deque()
        self._submitted = 0
        self._start()

    @property
    def pending(self) -> int:
        """Batches submitted and not yet collected."""
        return len(self._pending)

    def submit(self, raw: RawBatch) -> None:
        """Start to decode a batch."""
        if not self._workers:
            self._start()
        place = self._submitted % LOOKAHEAD
        self._submitted += 1
        slot = self._slots[place]
        ends = np.cumsum(raw.sizes)
        images = np.frombuffer(slot.images.view(max(1, int(ends[-1]))), np.uint8)
        begins = ends - raw.sizes
        for begin, end, image in zip(begins.tolist(), ends.tolist(), raw.images(), strict=True):
            images[begin:end] = np.frombuffer(image, np.uint8)
        slot.pixels.view(len(raw) * pixel_bytes(self._transform))
        busy = []
        for worker, rows in zip(self._workers, np.array_split(np.arange(len(raw)), self._num_workers), strict=True):
            if len(rows):
                part = slice(int(rows[0]), int(rows[-1]) + 1)
                columns = [array[part].tolist() for array in (raw.ids, begins, raw.sizes)]
                try:
                    worker.send(msgpack.packb((place, raw.epoch, part.start, *columns)))
                except WorkerError:
                    self.close()
                    raise
                busy.append(worker)
        self._pending.append((raw, slot, busy))

    def collect(self) -> Batch:
        """Return the oldest batch, in pinned memory where it is to go to a GPU.

        Raises SampleError naming the sample that cannot be decoded, WorkerError naming a process that died.
        """
        raw, slot, busy = self._pending.popleft()
        try:
            failures = [failure for failure in [worker.receive() for worker in busy] if failure is not None]
        except WorkerError:
            self.close()
            raise
        if failures:
            raise explain_failure([raw], failures[0])
        size = self._transform.size
        data = torch.empty((len(raw), 3, size, size), pin_memory=self._device.type == "cuda")
        shared = torch.frombuffer(slot.pixels.view(data.nbytes), dtype=torch.float32)
        # Copied, so that a batch may be kept for as long as its user wants.
        data.copy_(shared.view_as(data))
        return Batch(raw.ids, data, host_labels(raw, self._device), raw.nbytes)

    def reset(self) -> None:
        """Forget what is pending, once it is done: processes take longer to start than a batch takes them."""
        while self._pending:
            _, _, busy = self._pending.popleft()
            try:
                for worker in busy:
                    worker.receive()
            except WorkerError:
                self.close()

    def close(self) -> None:
        """End the processes; the next batch submitted starts others."""
        self._pending.clear()
        self._submitted = 0
        for worker in self._workers:
            worker.hang_up()
        while self._workers:
            self._workers.pop().join()
        while self._slots:
            slot = self._slots.pop()
            slot.images.close()
            slot.pixels.close()

    def _start(self) -> None:
        try:
            self._slots = [_Slot(_Memory(), _Memory()) for _ in range(LOOKAHEAD)]
            for _ in range(self._num_workers):
                self._workers.append(_Worker(self._slots, self._transform, self._seed))
        except BaseException:
            self.close()
            raise
