from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from loaders.base import Samples
from loaders.errors import WorkerError
from loaders.pipeline.image import ImageTransform
from loaders.streaming.loader import StreamingLoader

pytestmark = pytest.mark.process

SMALL = ImageTransform(size=16)
ALL = list(range(61))


def _loader(endpoint: str, **changed: object) -> StreamingLoader:
    arguments = {"transform": SMALL, "batch_size": 8, "seed": 5, "timeout_s": 10, "decode": "torch-process"}
    return StreamingLoader(endpoint=endpoint, **(arguments | changed))  # type: ignore[arg-type]


def _workers(process: psutil.Process | None = None) -> list[psutil.Process]:
    children = (process or psutil.Process()).children()
    return [child for child in children if "multiprocessing.spawn" in " ".join(child.cmdline())]


def _gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


def test_pixels_are_those_of_the_shared_transform_and_are_kept(daemon, samples: Samples) -> None:
    with _loader(daemon.endpoint, num_threads=2) as loader:
        batches = list(loader.epoch(0)) + list(loader.epoch(1))
        for place, batch in enumerate(batches):
            assert batch.labels.tolist() == samples.labels[batch.ids].tolist()
            for sample_id, image in zip(batch.ids.tolist(), batch.data, strict=True):
                encoded = samples.path(sample_id).read_bytes()
                assert torch.equal(image, SMALL.apply(encoded, seed=5, epoch=place // 8, sample_id=sample_id))
        workers = _workers()
        assert len(workers) == 2
    assert _gone(workers)


def test_an_epoch_left_in_the_middle_and_one_whose_process_is_killed_leave_a_loader_that_works(daemon) -> None:
    # Few batches ahead, so that most of them are still to be decoded when the process is killed.
    with _loader(daemon.endpoint, batch_size=1, prefetch_batches=2) as loader:
        workers = _workers()
        next(loader.epoch(0))
        assert sorted(i for batch in loader.epoch(2) for i in batch.ids.tolist()) == ALL
        assert _workers() == workers
        epoch = loader.epoch(0)
        next(epoch)
        victim = workers[0]
        victim.kill()
        with pytest.raises(WorkerError, match="num_threads"):
            list(epoch)
        assert sorted(i for batch in loader.epoch(1) for i in batch.ids.tolist()) == ALL


def test_close_in_the_middle_ends_the_processes_and_leaves_no_memory(
    daemon, resources: Callable[[], dict[str, int]], shared_memory_left: Callable[[set[Path]], set[Path]]
) -> None:
    def use() -> dict[str, int]:
        with _loader(daemon.endpoint, batch_size=2, num_threads=1) as loader:
            epoch = loader.epoch(0)
            next(epoch)
            workers = _workers()
            assert len(workers) == 1
        assert _gone(workers)
        return resources()

    shared = set(Path("/dev/shm").iterdir())
    # Beside the loaders, something may be opened once in this process or left to the garbage collector: what counts is
    # whether every use adds something.
    first, *_, last = (use() for _ in range(4))
    assert all(last[kind] - first[kind] < 3 for kind in first), (first, last)
    assert not shared_memory_left(shared)


KILLED = """
import sys, time
from loaders.pipeline.image import ImageTransform
from loaders.streaming import StreamingLoader
loader = StreamingLoader(endpoint=sys.argv[1], transform=ImageTransform(size=8), batch_size=2, seed=0,
                         decode="torch-process", timeout_s=20)
epoch = loader.epoch(0)
next(epoch)
print("running", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_the_one_that_started_them(daemon, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, daemon.endpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[4],
    )
    assert process.stdout is not None and process.stdout.readline() == b"running\n"
    workers = _workers(psutil.Process(process.pid))
    assert len(workers) == 2
    process.send_signal(number)
    try:
        process.wait(20)
    finally:
        process.kill()
        process.stdout.close()
    assert _gone(workers)
