"""The table of workers: its readers see a worker that starts and ends samples at any moment."""

import ctypes
import multiprocessing
import time
from multiprocessing.sharedctypes import RawArray

import pytest

from loaders.shared.stall_monitor import MONITOR_BYTES, WorkerTable

WORKERS = 4
LOOKS = 20_000


def start_and_end_samples(memory):
    table = WorkerTable(memory)
    while True:
        for worker in range(WORKERS):
            table.begin(worker, 0, 1, 0, time.monotonic_ns())
            table.end(worker)


@pytest.mark.process
def test_a_sample_that_ends_while_its_age_is_read_is_not_old():
    memory = RawArray(ctypes.c_int64, WORKERS * MONITOR_BYTES // 8)
    table = WorkerTable(memory)
    began = time.monotonic_ns()
    writer = multiprocessing.get_context("fork").Process(target=start_and_end_samples, args=(memory,), daemon=True)
    writer.start()
    try:
        for _ in range(LOOKS):
            now = time.monotonic_ns()
            assert table.ages_ns(now).max() <= now - began
    finally:
        writer.kill()
        writer.join()
