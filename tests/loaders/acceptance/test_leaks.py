"""Nothing grows from epoch to epoch."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from loaders import Loader

pytestmark = pytest.mark.process

EPOCHS = 24
SETTLED = 8
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
    before = held()
    payload_mb = 0.0
    with ExitStack() as stack:
        loaders = [stack.enter_context(pair.make()) for pair in all_pairs]
        run = map
        if all_pairs[0].loader.startswith("spdl"):
            # All pipelines at a time, for SPDL sleeps at the end of an epoch.
            run = stack.enter_context(ThreadPoolExecutor(len(loaders))).map
        for epoch in range(EPOCHS):
            if epoch == SETTLED:
                kept, kept_mb = held(), resident_mb()
            moved = sum(run(epoch_bytes, loaders, [epoch] * len(loaders)))
            payload_mb += moved / 1e6 if epoch >= SETTLED else 0.0
        assert resident_mb() - kept_mb < max(8.0, payload_mb / 4)
        for name, count in settled(kept).items():
            assert count <= kept[name], name
    del loaders
    gc.collect()
    # Engines keep a few threads and descriptors of their own once they were used: not one an epoch.
    for name, count in settled(before).items():
        assert count <= before[name] + (8 if name in ("threads", "descriptors") else 0), name


def epoch_bytes(loader: Loader, epoch: int) -> int:
    return sum(batch.data.nbytes for batch in loader.epoch(epoch))
