"""Stages and sweeps on real files, through a pipeline whose times are known."""

import time

import numpy as np
import pyarrow as pa
import pytest

from harness.diagnose.stages import time_stages
from harness.diagnose.sweep import find_workers_key, repeat
from harness.errors import ConfigError
from loaders.base import Samples
from loaders.errors import SampleError
from loaders.pipeline.timed import TimedPipeline
from loaders.pytorch import PyTorchLoader

SLEEP_S = 0.004


@pytest.fixture
def samples(tmp_path):
    for index in range(6):
        (tmp_path / f"{index}.bin").write_bytes(bytes(100 + index))
    paths = tuple(f"{index}.bin" for index in range(6))
    columns = {"transcript": pa.array([f"words {index}" for index in range(6)])}
    return Samples(tmp_path, paths, np.arange(6) % 2, np.arange(100, 106), columns)


def timed(samples, batch_size, *, sleep_s=1e-6, cached=True, tick=lambda *_: None):
    options = {"batch_size": batch_size, "seed": 0, "device": "cpu", "budget_s": 0.2}
    return time_stages(TimedPipeline(sleep_s), samples, **options, cached=cached, tick=tick)


@pytest.mark.parametrize("cached", [False, True])
def test_every_stage_is_timed_by_its_name_and_none_lasts_less_than_it_slept(samples, cached):
    ticks = []
    report = timed(samples, 4, sleep_s=SLEEP_S, cached=cached, tick=lambda done, total: ticks.append((done, total)))
    kinds = {"read": "read", "decode": "decode", "Sleep": "augment", "collate": "collate"}
    assert {stage.name: stage.kind for stage in report.stages} == kinds
    assert report.stages[2].batch_s >= 4 * SLEEP_S
    assert report.stages[2].sample_p50_s >= SLEEP_S
    assert len(report.batch) == 4
    assert ticks


def test_a_dataset_smaller_than_a_batch_fills_one(samples):
    assert len(timed(samples, 16).batch) == 16


def test_a_sample_that_cannot_be_read_is_named(samples):
    (samples.root / "3.bin").unlink()
    with pytest.raises(SampleError, match=r"sample 3 .*3\.bin"):
        timed(samples, 6)


@pytest.mark.process
def test_samples_that_share_one_slot_are_loaded_one_after_the_other_by_all_workers(samples):
    pipeline, began = TimedPipeline(0.05, at_once=1), time.monotonic()
    with PyTorchLoader(samples=samples, transform=pipeline, batch_size=1, seed=0, num_workers=3) as loader:
        batches = list(loader.epoch(0))
    assert sorted(int(batch.ids[0]) for batch in batches) == list(range(6))
    assert time.monotonic() - began >= 6 * 0.05


def test_samples_are_repeated_with_all_that_is_known_of_them(samples):
    longer = repeat(samples, 20)
    assert len(longer) == 24
    assert longer.path(7) == samples.path(1)
    assert longer.labels[7] == samples.labels[1]
    assert longer.sizes[7] == samples.sizes[1]
    assert longer.columns["transcript"][7].as_py() == "words 1"
    assert repeat(samples, 3) is samples


def test_a_loader_without_workers_cannot_be_swept():
    assert find_workers_key("pytorch", "loaders.pytorch.PyTorchLoader") == "num_workers"
    assert find_workers_key("dali", "loaders.dali.DaliLoader") == "num_threads"
    with pytest.raises(ConfigError, match="loader=odd"):
        find_workers_key("odd", "loaders.base.Samples")
