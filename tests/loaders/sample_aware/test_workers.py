"""Worker processes: how they start, how they end, and what is said when they do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest

from loaders import ImageTransform, LoaderConfigError, SampleAwareLoader, SampleError, WorkerError
from loaders.pipeline import Item

pytestmark = pytest.mark.process

PARENT = """
import sys, time
from pathlib import Path
import psutil
from loaders import ImageTransform, SampleAwareLoader, Samples
samples = Samples.load(Path(sys.argv[1]))
loader = SampleAwareLoader(samples=samples, transform=ImageTransform(size=16), batch_size=2, seed=0, num_workers=2)
next(loader.epoch(0))
print(*[child.pid for child in psutil.Process().children()], flush=True)
time.sleep(60)
"""


def ids_of(batches):
    return [int(sample_id) for batch in batches for sample_id in batch.ids]


def breaks_for(is_bad):
    """Return a transform that fails for some items."""

    def breaks(item: Item) -> Item:
        if is_bad(item):
            raise ValueError("no good")
        return item

    breaks.name = "Breaks"
    return breaks


def loader_of(samples, transform, **options):
    options = {"batch_size": 2, "seed": 0, "num_workers": 2, **options}
    return SampleAwareLoader(samples=samples, transform=transform, **options)


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in ("spawn", "forkserver"))]
)
def test_workers_start_by_every_method(image_tree, method):
    with loader_of(image_tree(9), ImageTransform(size=16), start_method=method, num_workers=1) as loader:
        for epoch in range(2):
            assert Counter(ids_of(loader.epoch(epoch))) == Counter(range(9))


def test_a_start_method_that_there_is_none_of_is_refused(image_tree):
    with pytest.raises(LoaderConfigError, match="start_method='thread'"):
        loader_of(image_tree(2), ImageTransform(size=16), start_method="thread")


def test_what_does_not_pickle_is_one_clear_error_under_spawn_and_works_under_fork(make_samples, timed):
    def double(item: Item) -> Item:
        return item

    double.name = "Double"
    pipeline = timed((double,))
    with (
        loader_of(make_samples(4), pipeline, start_method="spawn") as loader,
        pytest.raises(LoaderConfigError, match="collate_fn") as caught,
    ):
        next(loader.epoch(0))
    assert "\n" not in str(caught.value)
    with loader_of(make_samples(4), pipeline) as loader:
        assert sorted(ids_of(loader.epoch(0))) == [0, 1, 2, 3]


def test_a_worker_killed_while_it_holds_a_slow_sample_is_named_with_it(make_samples, timed, hang, tmp_path):
    notes = tmp_path / "notes"
    with loader_of(make_samples(20), timed((hang("Heavy", {3: 0.0}, notes=notes),)), slow_timeout_s=0.01) as loader:
        epoch = loader.epoch(0)
        ids_of(next(epoch) for _ in range(8))
        line = next(line for line in notes.read_text().splitlines() if line.startswith("Heavy 3 "))
        pid = int(line.split()[3])
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=rf"pid {pid}\) .*signal 9 .*sample 3 .*Heavy"):
            list(epoch)
        assert time.monotonic() - began < 5
    assert not psutil.pid_exists(pid)


def test_workers_end_with_a_parent_that_is_killed(image_tree, tmp_path):
    image_tree(8).save(tmp_path / "samples.parquet")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "samples.parquet")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(workers) == 2 and not any(alive(pid) for pid in workers)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_exception_in_a_transform_has_the_workers_traceback_in_its_notes(make_samples, timed):
    with (
        loader_of(make_samples(5), timed((breaks_for(lambda item: item.id == 2),))) as loader,
        pytest.raises(SampleError, match=r"sample 2 \(.*\) .*Breaks: ValueError") as caught,
    ):
        list(loader.epoch(0))
    assert any("in breaks" in note and "raise ValueError" in note for note in caught.value.__notes__)


def test_an_epoch_goes_on_after_one_that_a_sample_has_ended(make_samples, timed):
    breaks = breaks_for(lambda item: item.epoch == 0 and item.id == 2)
    with loader_of(make_samples(30), timed((breaks,))) as loader:
        with pytest.raises(SampleError):
            list(loader.epoch(0))
        assert Counter(ids_of(loader.epoch(1))) == Counter(range(30))


def test_skipped_samples_make_room_for_others_and_only_the_last_batch_is_short(make_samples, timed):
    breaks = breaks_for(lambda item: item.id % 3 == 0)
    with loader_of(make_samples(29), timed((breaks,)), on_error="skip", batch_size=4) as loader:
        batches = list(loader.epoch(0))
        assert Counter(ids_of(batches)) == Counter(k for k in range(29) if k % 3)
        assert sorted(map(len, batches)) == [3, 4, 4, 4, 4]
        assert set(loader.stats().skipped) == set(range(0, 29, 3))


LIMITED = """
import resource, sys, torch
from torch.utils.data import Dataset
from loaders import SampleAwareDataLoader

class Planes(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        return torch.full((64, 64), float(index)), index

used = 4096 * int(open("/proc/self/statm").read().split()[0])
limit = int(sys.argv[1]) + used * (len(sys.argv) > 2)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
loaders = [SampleAwareDataLoader(Planes(), 8, shuffle=True, num_workers=2, order=order) for order in (None, "strict")]
found = [label for pair in zip(*loaders) for _, labels in pair for label in labels.tolist()]
print(sorted(found) == sorted(2 * list(range(160))))
"""


def run_limited(*arguments):
    command = [sys.executable, "-c", LIMITED, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_limit_of_addresses_leaves_room_for_several_loaders():
    run = run_limited(16 << 30)
    assert run.stdout == "True\n", run.stderr


def test_too_low_a_limit_of_addresses_is_named():
    last = run_limited(100 << 20, "more").stderr.splitlines()[-1]
    assert last.startswith("loaders.errors.LoaderError: the process may have") and "RLIMIT_AS" in last
