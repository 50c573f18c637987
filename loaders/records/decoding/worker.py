"""A decoding process: takes jobs over a connection, leaves items in shared memory, and ends with the connection."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import random
import sys
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from loaders.errors import SampleError
from loaders.pipeline import Item, Pipeline
from loaders.records.decoding.received import ReceivedSamples, Row
from loaders.shared.processor import SampleProcessor
from loaders.shared.stall_monitor import MONITOR_BYTES, StallMonitor

_ALIGNED: Final = 64


class SharedMemory:
    """Memory that processes share by descriptor. It has no name, so nothing is left when a process is killed."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Make new memory, or map that of another process by its descriptor."""
        self.descriptor = os.memfd_create("streaming-decode", os.MFD_CLOEXEC) if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def view(self, nbytes: int) -> memoryview:
        """Return the first bytes, after making room for them."""
        return memoryview(self.map(nbytes))[:nbytes]

    def map(self, nbytes: int) -> mmap.mmap:
        """Return the mapped memory, after making room for so many bytes."""
        if self._map is None or len(self._map) < nbytes:
            size = max(nbytes, os.fstat(self.descriptor).st_size)
            os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
        return self._map

    def close(self) -> None:
        """Close the descriptor; views stay valid."""
        self._map = None
        os.close(self.descriptor)


class Part(NamedTuple):
    """Where a sample is in the memory for records."""

    sample_id: int
    label: int
    begin: int
    """Of the sample's record."""
    nbytes: int
    file: int
    """Where the file begins in that."""
    file_size: int


class Job(NamedTuple):
    """A part of a batch."""

    slot: int
    epoch: int
    samples: list[Part]


class JobResult(NamedTuple):
    """Where in the slot's memory the samples of a job are, each as a Done."""

    refusal: str
    """Why the process can do nothing at all; usually empty."""
    at: int
    nbytes: int


class Done(NamedTuple):
    """The outcome of one sample."""

    item: Item | None
    """None where it failed."""
    ns: int
    """Duration from reading on."""
    why: str


class _Pickler(pickle.Pickler):
    """Leaves the elements of tensors, like those of arrays, out of band."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.dtype != torch.bfloat16:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _dump(value: object, memory: SharedMemory) -> tuple[int, int]:
    """Put arrays and tensors into memory, and the pickled rest after them; return offset and size of the rest."""
    buffers: list[pickle.PickleBuffer] = []
    content = io.BytesIO()
    _Pickler(content, protocol=5, buffer_callback=buffers.append).dump(value)
    raws = [buffer.raw() for buffer in buffers]
    places, at = [], 0
    for raw in raws:
        places.append((at, raw.nbytes))
        at += -(-raw.nbytes // _ALIGNED) * _ALIGNED
    rest = pickle.dumps((places, content.getbuffer().tobytes()))
    view = memory.view(at + len(rest))
    for (place, nbytes), raw in zip(places, raws, strict=True):
        view[place : place + nbytes] = raw
    view[at:] = rest
    return at, len(rest)


def load(memory: SharedMemory, result: JobResult) -> list[Done]:
    """Return the samples of a job; their arrays and tensors share the memory."""
    view = memory.view(result.at + result.nbytes)
    # Only the loader and its own processes have this memory.
    places, content = pickle.loads(view[result.at :])  # noqa: S301
    buffers = [view[place : place + size] for place, size in places]
    return cast(list[Done], pickle.loads(content, buffers=buffers))  # noqa: S301


class _Runner:
    """A pipeline over the samples of jobs."""

    def __init__(self, pickled: bytes, seed: int, number: int, workers: int, descriptors: list[int]) -> None:
        """Map memory by its descriptors: of the stall monitor, then of the records and the items of each slot."""
        pipeline: Pipeline = pickle.loads(pickled)  # noqa: S301
        watch, *slots = [SharedMemory(descriptor) for descriptor in descriptors]
        self._records, self._items = slots[::2], slots[1::2]
        self._watch = StallMonitor(pipeline, workers, processes=True, memory=watch.map(workers * MONITOR_BYTES))
        self._pipeline, self._seed, self._number = pipeline, seed, number
        # A callable may draw from the process's own generators, which start alike in every process.
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        random.seed(own)
        np.random.seed(own)
        torch.manual_seed(own)

    def run(self, job: Job) -> JobResult:
        """Run the pipeline over a job's samples and leave the items in memory."""
        view = self._records[job.slot].view(max(part.begin + part.nbytes for part in job.samples))
        samples = ReceivedSamples({part.sample_id: _make_row(part, view) for part in job.samples})
        work = SampleProcessor(samples, self._pipeline, self._seed, workers=1, processes=False, monitor=self._watch)
        done = [self._load(work, job.epoch, part.sample_id) for part in job.samples]
        try:
            return JobResult("", *_dump(done, self._items[job.slot]))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return JobResult(f"the items of the pipeline cannot be sent to another process: {error}", 0, 0)

    def _load(self, work: SampleProcessor, epoch: int, sample_id: int) -> Done:
        try:
            loaded = work.load(self._number, epoch, sample_id)
        except SampleError as error:
            return Done(None, 0, str(error))
        return Done(loaded.item, loaded.ns, "")


def _make_row(part: Part, view: memoryview) -> Row:
    content = view[part.begin : part.begin + part.nbytes]
    return Row(content, part.label, part.file, part.file_size)


def main() -> None:
    """Run jobs until the connection ends; the arguments are its descriptor and those of shared memory."""
    torch.set_num_threads(1)
    connection, *descriptors = (int(argument) for argument in sys.argv[1:])
    try:
        # From the process that started this one, over a connection that only the two have.
        with Connection(connection) as loader:
            runner, refusal = None, ""
            first: tuple[bytes, int, int, int] = loader.recv()
            try:
                runner = _Runner(*first, descriptors)
            except Exception as error:  # noqa: BLE001 - the modules of a pipeline may raise anything
                refusal = f"the pipeline cannot be sent to another process: {type(error).__name__}: {error}"
            while True:
                job: Job = loader.recv()
                loader.send(JobResult(refusal, 0, 0) if runner is None else runner.run(job))
    except (EOFError, ConnectionError):  # the loader has ended
        os._exit(0)
