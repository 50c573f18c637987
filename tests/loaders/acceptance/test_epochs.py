"""Every epoch is whole, in an order of its own, and of the tensors that the pipeline gives."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from harness.cell.content import MAX_SAMPLES, Comparison, KeptSamples
from loaders import Batch, ImageTransform, LoaderError
from loaders.pipeline.detection import DetectionPipeline
from loaders.pipeline.speech import SpeechPipeline

pytestmark = pytest.mark.process


def ids_of(batches: list[Batch]) -> list[int]:
    return [int(sample_id) for batch in batches for sample_id in batch.ids]


def check_whole(batches: list[Batch], samples: Any, batch_size: int) -> None:
    count = len(samples)
    assert Counter(ids_of(batches)) == Counter(range(count))
    assert [len(batch) for batch in batches] == [
        min(batch_size, count - start) for start in range(0, count, batch_size)
    ]
    for batch in batches:
        assert batch.ids.dtype == np.int64
        assert batch.nbytes == samples.sizes[batch.ids].sum()
        if batch.work_s is not None:
            assert batch.work_s.shape == batch.ids.shape and (batch.work_s > 0).all()


def test_every_epoch_of_every_seed_gives_every_sample_once_in_an_order_of_its_own(any_pair, collect):
    samples, orders, counted = any_pair.data.samples, {}, 0
    for seed in (0, 7):
        with any_pair.make(seed=seed) as loader:
            for epoch in (0, 1):
                batches = collect(loader, epoch)
                check_whole(batches, samples, 4)
                orders[seed, epoch] = ids_of(batches)
            counted = loader.stats()
            if seed == 0:
                # Asked for again, after another one, and of a loader that has begun elsewhere.
                assert ids_of(collect(loader, 0)) == orders[0, 0]
    assert len({tuple(order) for order in orders.values()}) == 4
    assert (counted.samples, counted.batches) == (2 * len(samples), 2 * math.ceil(len(samples) / 4))
    assert counted.bytes == 2 * samples.sizes.sum()
    with any_pair.make(seed=7) as loader:
        assert ids_of(collect(loader, 1)) == orders[7, 1]


def test_batches_are_what_the_pipeline_makes_of_the_same_samples(any_pair, collect, reference, tmp_path):
    samples, pipeline = any_pair.data.samples, any_pair.data.pipeline
    kept = KeptSamples(len(samples))
    with any_pair.make(seed=3) as loader:
        for batch in collect(loader, 2):
            kept.take(batch)
            expected = reference(any_pair.data, batch, 3, 2)
            assert batch.data.shape == expected.data.shape and batch.data.dtype == expected.data.dtype
            assert torch.equal(batch.labels, expected.labels)
            assert batch.extra.keys() == expected.extra.keys()
            for name, tensor in expected.extra.items():
                assert torch.equal(batch.extra[name], tensor), name
            difference = (batch.data - expected.data).abs()
            match any_pair.data.pipeline:
                case ImageTransform(std=std) | DetectionPipeline(std=std):
                    levels = (difference * torch.tensor(std).view(1, 3, 1, 1) * 255).mean(dim=(1, 2, 3))
                    assert levels.max() <= any_pair.entry.grey_levels
                case SpeechPipeline():
                    assert difference.max() <= any_pair.entry.deviations
                case _:
                    assert torch.equal(batch.data, expected.data)
    samples.save(tmp_path / "samples.parquet")
    # By the harness's rule, too.
    found = Comparison(tmp_path / "samples.parquet", None, pipeline, 3, augments_itself=False).compare(2, kept.rows)
    assert (len(found.compared), found.wrong, found.by_form) == (MAX_SAMPLES, {}, False)


@pytest.mark.parametrize(("count", "batch_size"), [(1, 1), (1, 16), (5, 16), (16, 8)])
def test_a_dataset_smaller_than_its_batch_or_than_the_workers_is_whole(
    any_loader, make_images, serve, collect, count, batch_size
):
    data = make_images(count, shards=any_loader.entry.streams)
    served = serve(any_loader.entry, data)
    with any_loader.entry.make(data, data.pipeline, served, batch_size=batch_size) as loader:
        check_whole(collect(loader, 0), data.samples, batch_size)


def test_batches_outlive_the_epoch_and_the_loader(any_pair, collect):
    with any_pair.make() as loader:
        held = [(batch.data, batch.data.clone()) for batch in loader.epoch(0)]
        collect(loader, 1)
    for data, copy in held:
        assert torch.equal(data, copy)


def test_an_epoch_broken_off_does_not_reach_into_the_next(any_pair, collect):
    with any_pair.make() as loader:
        broken_off = loader.epoch(0)
        next(broken_off)
        check_whole(collect(loader, 1), any_pair.data.samples, 4)
        with pytest.raises(LoaderError, match="another"):
            next(broken_off)
