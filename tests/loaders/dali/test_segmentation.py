"""Volumes through DALI's operators are what the pipeline makes of them, bit by bit."""

from __future__ import annotations

import pytest
import torch

from loaders.pipeline.augment3d import GaussianNoise, RandomBrightness, RandomFlip
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.segmentation import SegmentationPipeline

# Some samples of a batch pass every operator by, and others do not.
PIPELINE = SegmentationPipeline(
    RandomCrop(16), RandomFlip(0.5), RandomBrightness(probability=0.5), GaussianNoise(probability=0.5)
)


@pytest.mark.parametrize("edge", [20, 12])
def test_every_voxel_is_that_of_the_pipeline(volumes, through, edge):
    for batch, expected in through(volumes(13, edge), PIPELINE):
        assert torch.equal(batch.data, expected.data)
        assert torch.equal(batch.labels, expected.labels) and batch.labels.dtype == torch.uint8
        assert batch.extra == {}


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_a_step_may_be_passed_by_by_all_or_by_none(volumes, through, probability):
    pipeline = SegmentationPipeline(
        RandomCrop(16),
        RandomFlip(probability),
        RandomBrightness(probability=probability),
        GaussianNoise(probability=probability),
    )
    for batch, expected in through(volumes(5), pipeline, batch_size=3):
        assert torch.equal(batch.data, expected.data) and torch.equal(batch.labels, expected.labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_gpu_makes_the_same_voxels(volumes, through):
    for batch, expected in through(volumes(13), PIPELINE, device="cuda"):
        assert batch.data.is_cuda and batch.labels.is_cuda
        torch.testing.assert_close(batch.data.cpu(), expected.data, rtol=1e-6, atol=1e-6)
        assert torch.equal(batch.labels.cpu(), expected.labels)
