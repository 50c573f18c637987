"""Whatever is wrong with a sample or a worker is an error that names it, or what was declared to become of it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from loaders import LoaderConfigError, SampleError, SampleTimeoutError, WorkerError

pytestmark = pytest.mark.process

VICTIM = 5


@pytest.fixture
def damaged(any_file_pair):
    """The pair with one file cut short; whole again afterwards."""
    path = any_file_pair.data.samples.path(VICTIM)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 5])
    yield any_file_pair
    path.write_bytes(whole)


def test_a_damaged_sample_is_named_with_its_file_and_its_stage(damaged, collect):
    with damaged.make() as loader, pytest.raises(SampleError) as caught:
        collect(loader, 0)
    assert f"sample {VICTIM} ({damaged.data.samples.path(VICTIM)}) cannot be " in str(caught.value)


def test_skipped_samples_are_counted_and_told_and_all_others_come_once(damaged, collect):
    if damaged.loader in ("dali", "dali_mapped") and damaged.data.pipeline.__class__.__name__ == "ImageTransform":
        with pytest.raises(LoaderConfigError, match="on_error=skip"):
            damaged.make(on_error="skip")
        return
    count = len(damaged.data.samples)
    with damaged.make(on_error="skip") as loader:
        batches = collect(loader, 0)
        stats = loader.stats()
    ids = Counter(int(sample_id) for batch in batches for sample_id in batch.ids)
    assert ids == Counter(set(range(count)) - {VICTIM})
    assert sum(len(batch) for batch in batches) == stats.samples == count - 1
    assert stats.batches == len(batches)
    assert list(stats.skipped) == [VICTIM] and f"sample {VICTIM} (" in stats.skipped[VICTIM]
    assert stats.details["skipped_samples"] == 1


@pytest.mark.parametrize("name", ["pytorch", "spdl"])
def test_a_batch_of_which_nothing_is_left_is_left_out(name, table, make_images, collect):
    data = make_images(5)
    for sample_id in range(5):
        data.samples.path(sample_id).write_bytes(b"")
    with table[name].make(data, data.pipeline, on_error="skip", batch_size=2) as loader:
        assert collect(loader, 0) == []
        assert set(loader.stats().skipped) == set(range(5))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"sample 5 \(.*\.jpg\) .*Trip: ValueError"),
        ("shape", r"sample 5 \(.*\.jpg\) .*collate: .*\(3, 64, 63\)"),
        ("collate", r"samples \[.*5.*\] .*collate: ValueError"),
    ],
)
def test_a_fault_of_the_pipeline_is_named_with_its_stage(any_python, faulty, collect, fault, message):
    pipeline = faulty(any_python.data.pipeline, VICTIM, fault)
    with any_python.make(pipeline=pipeline) as loader, pytest.raises(SampleError, match=message):
        collect(loader, 0)


def test_a_sample_that_never_returns_is_named_with_its_stage_and_worker_in_time(any_python, faulty, collect):
    pipeline = faulty(any_python.data.pipeline, VICTIM, "hangs")
    with any_python.make(pipeline=pipeline, sample_timeout_s=0.4) as loader:
        began = time.monotonic()
        with pytest.raises(SampleTimeoutError, match=r"sample 5 \(.*\) .*Trip .*(worker|thread) \d"):
            collect(loader, 0)
    # The sample itself would take 30 s.
    assert time.monotonic() - began < 10


def test_slow_samples_within_the_limit_end_no_epoch(any_python, faulty, collect):
    pipeline = faulty(any_python.data.pipeline, VICTIM, "hangs", hangs_for_s=0.6)
    with any_python.make(pipeline=pipeline, sample_timeout_s=5.0) as loader:
        next(loader.epoch(0))
        assert sum(len(batch) for batch in collect(loader, 1)) == len(any_python.data.samples)


def is_left(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_worker_is_named_and_where_there_is_none_nothing_can_be_killed(any_loader, make_images, serve):
    data = make_images(60, shards=any_loader.entry.streams)
    served = serve(any_loader.entry, data)
    # Python starts it with the first process that is spawned, and it is no worker.
    resource_tracker.ensure_running()
    others = psutil.Process().children()
    with any_loader.entry.make(data, data.pipeline, served, batch_size=2) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        workers = [child for child in psutil.Process().children() if child not in others]
        if not workers:
            return
        # torch raises in whatever the main thread is about, so the kill belongs to what may raise.
        with pytest.raises(WorkerError, match=f"{workers[0].pid}.*(signal|SIGKILL)"):
            os.kill(workers[0].pid, signal.SIGKILL)
            # A large process takes a while to die, in which the others could end the epoch.
            while is_left(workers[0]):
                time.sleep(0.01)
            list(epoch)
            time.sleep(5)
    assert not [child for child in workers if is_left(child)]
    assert not [path for worker in workers for path in Path("/dev/shm").glob(f"torch_{worker.pid}_*")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"on_error": "ignore"}, "on_error='ignore': .*raise, skip"), ({"sample_timeout_s": 0}, "sample_timeout_s=0")],
)
@pytest.mark.parametrize("name", ["pytorch", "records", "sample_aware"])
def test_a_policy_that_there_is_none_of_is_refused_by_name(table, datasets, serve, name, wrong, message):
    data, entry = datasets["image"], table[name]
    with pytest.raises(LoaderConfigError, match=message):
        entry.make(data, data.pipeline, serve(entry, data), **wrong)


def test_a_combination_that_cannot_be_had_is_refused_in_one_line(datasets, serve, table):
    refused = {
        ("streaming", "segmentation"): "decode=dali: .*Segmentation",
        ("streaming", "speech"): "SpeechPipeline .*decode=auto or decode=torch",
        ("spdl_decode", "segmentation"): "decode=spdl: .*ImageTransform",
    }
    for (loader, kind), message in refused.items():
        served = serve(table[loader], datasets[kind])
        options = {"decode": "dali"} if loader == "streaming" else {}
        with pytest.raises(LoaderConfigError, match=message) as caught:
            table[loader].make(datasets[kind], datasets[kind].pipeline, served, **options)
        assert "\n" not in str(caught.value)


def test_a_time_limit_that_cannot_be_kept_is_refused_in_one_line(datasets, table):
    image = datasets["image"]
    with pytest.raises(LoaderConfigError, match="num_workers"):
        table["pytorch_in_process"].make(image, image.pipeline, sample_timeout_s=1.0)
