from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
import torch

from loaders import ImageTransform, SampleError, Samples, SpdlLoader
from loaders.threads import DaemonThreads

TRANSFORM = ImageTransform(size=32)
Tree = Callable[[int], Samples]


def test_the_stats_tell_of_every_stage_and_queue(image_tree: Tree) -> None:
    with SpdlLoader(samples=image_tree(12), transform=TRANSFORM, batch_size=4, seed=0) as loader:
        list(loader.epoch(0))
        list(loader.epoch(1))
        figures = loader.stats().details
    for stage, count in {"read": 24, "decode": 24, "random_resized_crop": 24, "normalize": 24, "collate": 6}.items():
        assert figures[f"{stage}_count"] == count
        assert 0 < figures[f"{stage}_mean_s"] <= figures[f"{stage}_p99_s"] * 24
    for queue in ("src", "load", "aggregate", "collate", "sink"):
        assert 0 <= figures[f"{queue}_queue_occupancy"] <= 1


def test_a_failure_is_raised_and_not_logged_as_well(image_tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    samples = image_tree(12)
    samples.path(3).write_bytes(b"")
    with (
        caplog.at_level(logging.WARNING),
        SpdlLoader(samples=samples, transform=TRANSFORM, batch_size=4, seed=0) as loader,
    ):
        with pytest.raises(SampleError, match="sample 3 "):
            list(loader.epoch(0))
        samples.path(3).write_bytes(samples.path(4).read_bytes())
        assert sum(len(batch) for batch in loader.epoch(0)) == 12
    assert not caplog.records


def test_its_threads_use_one_core_each_and_leave_the_others_theirs() -> None:
    here = torch.get_num_threads()
    torch.set_num_threads(here)  # which torch remembers for threads to come
    pool = DaemonThreads(1, "test")
    assert pool.submit(torch.get_num_threads).result() == 1
    pool.shutdown()
    assert torch.get_num_threads() == here


def test_a_thread_that_hangs_is_left_behind_and_keeps_nobody_waiting() -> None:
    pool = DaemonThreads(1, "test")
    begun, released = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return released.wait()

    hanging = pool.submit(hang)
    begun.wait()
    waiting = pool.submit(print)
    pool.shutdown()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(print)
    released.set()
    assert hanging.result(5)
