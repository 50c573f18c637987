"""The fixed batch: what another loader would count, with data that were loaded once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from loaders import ImageTransform, LoaderError, SampleError
from loaders.pipeline.image import epoch_order
from loaders.shared.fixed import FixedBatchLoader
from tests.loaders.conftest import make_tree

TRANSFORM = ImageTransform(size=32)


def make(samples, batch_size=4, **options):
    return FixedBatchLoader(samples=samples, transform=TRANSFORM, seed=0, batch_size=batch_size, **options)


def test_every_id_comes_once_an_epoch_in_the_order_of_other_loaders_with_the_same_tensor(tmp_path):
    samples = make_tree(tmp_path, 10)
    with make(samples) as loader:
        epochs = [list(loader.epoch(epoch)) for epoch in range(3)]
        assert loader.stats().bytes == 3 * samples.sizes.sum()
    for epoch, batches in enumerate(epochs):
        ids = [int(sample_id) for batch in batches for sample_id in batch.ids]
        assert ids == epoch_order(10, seed=0, epoch=epoch).tolist()
        assert [len(batch.data) for batch in batches] == [4, 4, 2]
    whole = [batch.data for batches in epochs for batch in batches if len(batch) == 4]
    assert len({data.data_ptr() for data in whole}) == 1
    assert torch.equal(epochs[0][2].data, whole[0][:2])


def test_files_are_read_when_it_is_made_and_not_again(tmp_path):
    samples = make_tree(tmp_path, 6)
    with make(samples) as loader:
        for path in samples.paths:
            (samples.root / path).unlink()
        assert sum(len(batch) for batch in loader.epoch(0)) == 6


def test_a_batch_larger_than_the_dataset_is_the_dataset(tmp_path):
    with make(make_tree(tmp_path, 3), batch_size=8) as loader:
        (batch,) = loader.epoch(0)
    assert sorted(batch.ids.tolist()) == [0, 1, 2]
    assert batch.data.shape[0] == 3


def test_a_sample_that_cannot_be_loaded_is_named_before_the_first_epoch(tmp_path):
    samples = make_tree(tmp_path, 3)
    (samples.root / samples.paths[1]).write_bytes(b"no picture")
    with pytest.raises(SampleError, match="sample 1 "):
        make(samples)


def test_a_closed_loader_gives_nothing_more(tmp_path):
    with make(make_tree(tmp_path, 8)) as loader:
        epoch = loader.epoch(0)
        next(epoch)
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(epoch)


def test_ranks_share_the_samples_as_those_of_other_loaders_do(tmp_path):
    samples = make_tree(tmp_path, 11)
    ids = []
    for rank in range(2):
        with make(samples, rank=rank, world_size=2, remainder="uneven") as loader:
            batches = list(loader.epoch(1))
            assert [len(batch.data) for batch in batches] == [len(batch.ids) for batch in batches]
            ids += np.concatenate([batch.ids for batch in batches]).tolist()
    assert sorted(ids) == list(range(11))


def test_its_samples_are_those_of_usual_size(tmp_path):
    samples = make_tree(tmp_path, 8)
    (samples.root / samples.paths[0]).unlink()
    sizes = samples.sizes.copy()
    sizes[0] = 100 * sizes.max()
    with make(replace(samples, sizes=sizes), batch_size=7) as loader:
        assert [len(batch.data) for batch in loader.epoch(0)] == [7, 1]
