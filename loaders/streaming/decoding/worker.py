"""A decoding process: takes jobs from standard input, leaves items in shared memory, and ends when the input does.

Messages both ways are their length and then msgpack: first the pickled pipeline and what else the process is told, then
jobs, each of which is answered.
"""

from __future__ import annotations

import os
import pickle
import random
import sys

import msgpack
import numpy as np
import torch

from loaders.errors import SampleError
from loaders.pipeline import Pipeline
from loaders.shared.processor import SampleProcessor
from loaders.shared.stall_monitor import MONITOR_BYTES, StallMonitor
from loaders.streaming.decoding.memory import SharedMemory
from loaders.streaming.decoding.messages import Answer, Done, Job, Part, dump, read_message, write_message
from loaders.streaming.decoding.received import Row, received

__all__ = ["main"]


class _Runner:
    """A pipeline over the samples of jobs."""

    def __init__(self, pickled: bytes, seed: int, number: int, workers: int, descriptors: list[int]) -> None:
        """Take up memory by its descriptors: of the watch, then of the records and of the items of each slot."""
        pipeline: Pipeline = pickle.loads(pickled)  # noqa: S301
        watch, *slots = [SharedMemory(descriptor) for descriptor in descriptors]
        self._records, self._items = slots[::2], slots[1::2]
        self._watch = StallMonitor(pipeline, workers, processes=True, memory=watch.mapped(workers * MONITOR_BYTES))
        self._pipeline, self._seed, self._number = pipeline, seed, number
        # A callable may draw from the process's own generators, which begin alike in every process.
        own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        random.seed(own)
        np.random.seed(own)
        torch.manual_seed(own)

    def run(self, job: Job) -> Answer:
        """Run the pipeline over a job's samples and leave what it makes of them in memory."""
        parts = [Part(*part) for part in job.samples]
        view = self._records[job.slot].view(max(part.begin + part.nbytes for part in parts))
        work = SampleProcessor(
            received({part.sample_id: _row(part, view) for part in parts}),
            self._pipeline,
            self._seed,
            workers=1,
            processes=False,
        )
        work.monitor = self._watch
        done = [self._load(work, job.epoch, part.sample_id) for part in parts]
        try:
            at, nbytes = dump(done, self._items[job.slot])
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return Answer(f"what the pipeline makes of a sample cannot be sent to another process: {error}", 0, 0)
        return Answer("", at, nbytes)

    def _load(self, work: SampleProcessor, epoch: int, sample_id: int) -> Done:
        try:
            loaded = work.load(self._number, epoch, sample_id)
        except SampleError as error:
            return Done(None, 0, str(error))
        return Done(loaded.item, loaded.ns, "")


def _row(part: Part, view: memoryview) -> Row:
    content = view[part.begin : part.begin + part.nbytes]
    return Row(content, part.label, part.file, part.file_size, whole=part.whole)


def main(descriptors: list[int]) -> None:
    """Run jobs until standard input ends."""
    torch.set_num_threads(1)
    # What a pipeline prints must not get between the answers, nor what it reads between the jobs.
    jobs, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    first = read_message(jobs)
    if first is None:
        return
    runner, refusal = None, ""
    try:
        # From the process that started this one, through a pipe that only the two have.
        pickled, seed, number, workers = pickle.loads(first)  # noqa: S301
        runner = _Runner(pickled, seed, number, workers, descriptors)
    except Exception as error:  # noqa: BLE001 - a pipeline's modules may raise whatever they run into
        refusal = f"the pipeline cannot be sent to another process: {type(error).__name__}: {error}"
    while (message := read_message(jobs)) is not None:
        job = Job(*msgpack.unpackb(message))
        answer = Answer(refusal, 0, 0) if runner is None else runner.run(job)
        write_message(answers, msgpack.packb(answer))


if __name__ == "__main__":
    try:
        main([int(argument) for argument in sys.argv[1:]])
    except BrokenPipeError:  # nobody wants the answer any more
        os._exit(0)
