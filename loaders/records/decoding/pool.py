"""Worker processes that run a pipeline: how each begins, what it sends, how all are killed."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch

from loaders.records.workers import begin_worker
from loaders.shared.stall_monitor import StallMonitor

Begin: TypeAlias = Callable[[bytes, int, "SimpleQueue[int]", StallMonitor], None]
"""What a process does first, with its pickled part, the seed, the queue of numbers, and the monitor."""


def start_pool(count: int, begin: Begin, pickled: bytes, seed: int, monitor: StallMonitor) -> ProcessPoolExecutor:
    """Start so many processes, numbered from 0; `begin` calls `begin_numbered_worker`."""
    # Forking would copy the locks of this process's threads.
    context = multiprocessing.get_context("spawn")
    numbers = context.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=begin, initargs=(pickled, seed, numbers, monitor))
    for _ in range(count):  # each call starts a process, while none is idle
        pool.submit(_is_ready)
    return pool


def _is_ready() -> None:
    """Return once this process has started."""


def begin_numbered_worker(seed: int, numbers: SimpleQueue[int]) -> int:
    """Begin a worker that runs a pipeline, and return its number, which it takes from `numbers`."""
    begin_worker()
    torch.set_num_threads(1)
    number = numbers.get()
    # A callable may draw from the process's own generators, which start alike in every process.
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
    return number


def pickle_items(value: object) -> bytes:
    """Return a pickle in which tensors are arrays, which are copied once; raises what pickling raises."""
    content = io.BytesIO()
    _Pickler(content, protocol=5).dump(value)
    return content.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.dtype != torch.bfloat16:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def kill_workers(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool, whose calls under way then raise BrokenProcessPool."""
    for process in list((pool._processes or {}).values()):  # no public way before Python 3.14
        process.kill()
