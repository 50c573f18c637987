from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from loaders import ImageTransform, LoaderConfigError, PyTorchLoader, Samples, WorkerError
from loaders.base import SampleSource
from loaders.pipeline import Data, WrappedPipeline

pytestmark = pytest.mark.process

TRANSFORM = ImageTransform(size=32)
Tree = Callable[[int], Samples]

ORPHANS = """
import os, signal, sys, time
from pathlib import Path
import psutil
from loaders import ImageTransform, PyTorchLoader, Samples
samples = Samples.load(Path(sys.argv[1]))
loader = PyTorchLoader(samples=samples, transform=ImageTransform(size=32), batch_size=2, seed=0, num_workers=2)
next(loader.epoch(0))
print(*[child.pid for child in psutil.Process().children()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def others() -> None:
    """Remember the children that other tests have left, a fork server for one."""
    _OTHERS[:] = psutil.Process().children()


_OTHERS: list[psutil.Process] = []


def workers() -> list[psutil.Process]:
    children = [child for child in psutil.Process().children() if child not in _OTHERS]
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def test_close_with_batches_under_way_leaves_no_shared_memory(
    image_tree: Tree, orphaned_memory: Callable[[], list[str]]
) -> None:
    samples = image_tree(64)
    for turn in range(8):
        # Large batches, so that some worker is about to make shared memory when it is told to end.
        with PyTorchLoader(
            samples=samples, transform=ImageTransform(size=256), batch_size=4, seed=turn, num_workers=2
        ) as loader:
            next(loader.epoch(0))
    assert not orphaned_memory()


def test_a_worker_killed_under_another_thread_is_named(image_tree: Tree) -> None:
    caught: list[BaseException] = []

    def consume() -> None:
        with PyTorchLoader(samples=image_tree(400), transform=TRANSFORM, batch_size=2, seed=0, num_workers=2) as loader:
            try:
                for index, _ in enumerate(loader.epoch(0)):
                    if index == 1:
                        for worker in workers():
                            os.kill(worker.pid, signal.SIGKILL)
            except WorkerError as error:
                caught.append(error)

    # torch's own handler raises in the main thread, which is not the one that reads.
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join(30)
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert "signal 9" in str(caught[0])
    assert not workers()


def test_workers_die_with_their_parent_and_leave_nothing(
    image_tree: Tree, tmp_path: Path, orphaned_memory: Callable[[], list[str]]
) -> None:
    image_tree(100).save(tmp_path / "samples.parquet")
    temporary = tempfile.mkdtemp(prefix="jf-")  # short: the path of a socket has at most 107 bytes
    parent = subprocess.run(
        [sys.executable, "-c", ORPHANS, str(tmp_path / "samples.parquet")],
        check=False,
        env=os.environ | {"TMPDIR": temporary},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert parent.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in parent.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not orphaned_memory()
    Path(temporary).rmdir()  # raises where something is left in it


@dataclass(frozen=True)
class LateFirst(WrappedPipeline):
    """Images, of which one is ready only after an event."""

    of: ImageTransform
    sample_id: int
    event: Any = field(default_factory=multiprocessing.Event)

    def read(self, samples: SampleSource, sample_id: int) -> bytes | memoryview:
        if sample_id == self.sample_id:
            assert self.event.wait(30)
        return self.of.read(samples, sample_id)


def test_without_order_a_late_batch_comes_after_those_that_are_ready(image_tree: Tree) -> None:
    samples = image_tree(11)
    with PyTorchLoader(samples=samples, transform=TRANSFORM, batch_size=2, seed=0, num_workers=0) as loader:
        orders = [[int(k) for batch in loader.epoch(epoch) for k in batch.ids] for epoch in (0, 1)]
    late = LateFirst(TRANSFORM, orders[0][0])
    with PyTorchLoader(samples=samples, transform=late, batch_size=2, seed=0, num_workers=2, in_order=False) as loader:
        epoch = loader.epoch(0)
        got = [next(epoch)]
        late.event.set()
        got += epoch
        assert late.sample_id not in got[0].ids
        assert sorted(int(k) for batch in got for k in batch.ids) == sorted(orders[0])
        assert {tuple(batch.ids) for batch in loader.epoch(1)} == {
            tuple(orders[1][start : start + 2]) for start in range(0, 11, 2)
        }


def test_a_path_that_is_too_long_for_sockets_is_refused(image_tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'long' * 20}")
    with pytest.raises(LoaderConfigError, match="TMPDIR"):
        PyTorchLoader(samples=image_tree(2), transform=ImageTransform(size=32), batch_size=2, seed=0, num_workers=1)


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_are_not_tied_to_a_thread_that_ends_before_the_process(image_tree: Tree, persistent: bool) -> None:
    with PyTorchLoader(
        samples=image_tree(12), transform=TRANSFORM, batch_size=2, seed=0, num_workers=2, persistent_workers=persistent
    ) as loader:
        broken_off = loader.epoch(0)
        thread = threading.Thread(target=next, args=(broken_off,))
        thread.start()
        thread.join()
        # What a worker that believes its parent dead does: end, and take along the folder of everybody's sockets.
        time.sleep(0.2)
        assert len(workers()) == 2
        assert Path(multiprocessing.util.get_temp_dir()).is_dir()
        assert sum(len(batch) for batch in loader.epoch(1)) == 12


@pytest.mark.parametrize("after_one_that_was_dropped", [False, True])
def test_the_signal_handler_that_was_there_is_put_back(image_tree: Tree, after_one_that_was_dropped: bool) -> None:
    common: dict[str, Any] = {"transform": TRANSFORM, "batch_size": 2, "seed": 0, "num_workers": 1}
    samples = image_tree(8)
    if after_one_that_was_dropped:
        next(PyTorchLoader(samples=samples, **common).epoch(0))
        gc.collect()
    with PyTorchLoader(samples=samples, **common) as loader:
        list(loader.epoch(0))
        watching = signal.getsignal(signal.SIGCHLD)
    assert signal.getsignal(signal.SIGCHLD) != watching


@dataclass(frozen=True)
class OfMany(WrappedPipeline):
    """Images of samples that carry a listing of so many paths, read by workers that have their parent's folder."""

    listed: int = 0
    sockets: str = ""

    def read(self, samples: SampleSource, sample_id: int) -> Data:
        assert isinstance(samples, Samples) and len(samples.listing) == self.listed
        assert multiprocessing.util.get_temp_dir() == self.sockets
        return self.of.read(samples, sample_id)


def test_workers_that_are_spawned_get_the_listing_of_the_samples_and_make_no_folder(image_tree: Tree) -> None:
    samples = image_tree(10).with_listing(50_000)
    assert set(samples.listing) == set(samples.paths) and samples.first(10).listing == ()
    assert len(pickle.dumps(samples)) > sum(map(len, samples.listing)), "each path is pickled, and not once for all"
    pipeline = OfMany(TRANSFORM, 50_000, multiprocessing.util.get_temp_dir())
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "batch_size": 4, "seed": 0}
    with PyTorchLoader(samples=samples, transform=pipeline, **options) as loader:
        assert sorted(int(k) for batch in loader.epoch(0) for k in batch.ids) == list(range(10))


def test_more_workers_than_processors_bring_no_warning(image_tree: Tree, recwarn: pytest.WarningsRecorder) -> None:
    many = (os.cpu_count() or 1) + 1
    with PyTorchLoader(samples=image_tree(8), transform=TRANSFORM, batch_size=2, seed=0, num_workers=many) as loader:
        list(loader.epoch(0))
    assert not [warning for warning in recwarn if "worker" in str(warning.message)]


def test_close_does_not_wait_for_a_lock_that_a_dead_worker_took_with_it(image_tree: Tree) -> None:
    loader = PyTorchLoader(samples=image_tree(40), transform=TRANSFORM, batch_size=2, seed=0, num_workers=2)
    next(loader.epoch(0))
    # Every worker takes it now and then; one that is killed just then never gives it back.
    loader._torch._iterator._workers_done_event._cond.acquire()
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert not workers()


SMALL_SHARED_MEMORY = """
import sys
from pathlib import Path
from loaders import ImageTransform, PyTorchLoader, Samples
samples = Samples.load(Path(sys.argv[1]))
with PyTorchLoader(samples=samples, transform=ImageTransform(size=224), batch_size=8, seed=0, num_workers=2) as loader:
    list(loader.epoch(0))
"""


def test_shared_memory_without_room_for_a_batch_is_told_in_one_line(image_tree: Tree, tmp_path: Path) -> None:
    image_tree(16).save(tmp_path / "samples.parquet")
    # In a mount namespace of its own, where /dev/shm has 4 MB and a batch 4.8.
    script = 'mount -t tmpfs -o size=4m none /dev/shm && exec "$0" -c "$1" "$2"'
    argv = [sys.executable, SMALL_SHARED_MEMORY, str(tmp_path / "samples.parquet")]
    run = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, *argv],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "LoaderError: /dev/shm has" in last
    assert "4.8 MB" in last
    assert "--shm-size" in last
