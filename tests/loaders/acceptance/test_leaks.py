"""Nothing grows from epoch to epoch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, islice
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from loaders import Loader

pytestmark = pytest.mark.process

EPOCHS = 10
"""Of a span in which growth is measured."""
SPANS = 3
SETTLED = 6
"""Epochs after which engines, allocators and caches have what they keep."""


def held() -> dict[str, int]:
    children = psutil.Process().children(recursive=True)
    pids = [psutil.Process().pid, *(child.pid for child in children)]
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "processes": sum(1 for child in children if child.status() != psutil.STATUS_ZOMBIE),
        # What others on the machine have there is not counted; open memory without a name is a descriptor.
        "shared memory": sum(1 for pid in pids for _ in Path("/dev/shm").glob(f"torch_{pid}_*")),
    }


def settled(most: dict[str, int]) -> dict[str, int]:
    """Wait until no more than this is held: threads of queues end a moment after their workers."""
    deadline = time.monotonic() + 10
    while any(held()[name] > most[name] for name in most) and time.monotonic() < deadline:
        time.sleep(0.05)
        gc.collect()
    return held()


def resident_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


def test_nothing_grows_from_epoch_to_epoch_and_nothing_is_left(all_pairs):
    # Python starts it with the first process that is spawned, and keeps it.
    resource_tracker.ensure_running()
    before = held()
    with ExitStack() as stack:
        loaders = [stack.enter_context(pair.make()) for pair in all_pairs]
        run = map
        if all_pairs[0].loader.startswith("spdl"):
            # All pipelines at a time, for SPDL sleeps at the end of an epoch.
            run = stack.enter_context(ThreadPoolExecutor(len(loaders))).map
        epochs = count()
        for _ in range(SETTLED):
            sum(run(epoch_bytes, loaders, [next(epochs)] * len(loaders)))
        kept = held()
        # Allocators grow now and then. What leaks grows in every span.
        assert any(
            grown_mb < max(8.0, payload_mb / 4)
            for grown_mb, payload_mb in (growth(run, loaders, epochs) for _ in range(SPANS))
        )
        for name, many in settled(kept).items():
            assert many <= kept[name], name
    del loaders
    gc.collect()
    # Engines keep a few threads and descriptors of their own once they were used: not one an epoch.
    for name, many in settled(before).items():
        assert many <= before[name] + (8 if name in ("threads", "descriptors") else 0), name


def growth(run: Callable[..., Iterable[int]], loaders: list[Loader], epochs: Iterator[int]) -> tuple[float, float]:
    """Return by how much the memory of this process grew in a span of epochs, and how much they moved, MB."""
    kept_mb, moved = resident_mb(), 0
    for epoch in islice(epochs, EPOCHS):
        moved += sum(run(epoch_bytes, loaders, [epoch] * len(loaders)))
    return resident_mb() - kept_mb, moved / 1e6


def epoch_bytes(loader: Loader, epoch: int) -> int:
    return sum(batch.data.nbytes for batch in loader.epoch(epoch))
