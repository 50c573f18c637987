"""Pictures through DALI's operators, with their boxes and masks, are what the pipeline makes of them."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from loaders import Batch, DaliLoader, SampleError
from loaders.dali.detection import MEAN_GREY_LEVELS
from loaders.pipeline import Tensors
from loaders.pipeline.detection import DetectionPipeline

PIPELINE = DetectionPipeline(min_size=96, max_size=160)


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture
def encoded(encode_image) -> list[bytes]:
    """Of every kind and of many sizes."""
    kinds = [{}, {"mode": "L"}, {"mode": "CMYK"}, {"exif": turned()}, {"format": "PNG"}, {"progressive": True}]
    return [encode_image(60 + 37 * k % 200, 50 + 53 * k % 170, seed=k, **kinds[k % 6]) for k in range(13)]


def assert_same(batch: Batch, expected: Tensors, most: float) -> None:
    assert batch.data.shape == expected.data.shape and batch.data.dtype == expected.data.dtype
    assert torch.equal(batch.labels.cpu(), expected.labels)
    assert batch.extra.keys() == expected.extra.keys()
    for name, tensor in expected.extra.items():
        assert torch.equal(batch.extra[name].cpu(), tensor), name
    std = torch.tensor(PIPELINE.std).view(3, 1, 1)
    for ours, theirs, (height, width) in zip(
        batch.data.cpu(), expected.data, batch.extra["sizes"].tolist(), strict=True
    ):
        assert not ours[:, height:].any() and not ours[:, :, width:].any()
        levels = ((ours - theirs)[:, :height, :width] * std * 255).abs().mean()
        assert levels < most


@pytest.mark.parametrize("min_size", [96, 40])
def test_pictures_are_within_half_a_grey_level_and_their_things_are_equal(encoded, pictures, through, min_size):
    pipeline = DetectionPipeline(min_size=min_size, max_size=160)
    for batch, expected in through(pictures(encoded), pipeline):
        assert batch.extra["masks"].any() or not expected.extra["masks"].any()
        assert_same(batch, expected, MEAN_GREY_LEVELS)


@pytest.mark.parametrize("kept", [0.2, 0.97])
def test_a_picture_that_is_cut_short_is_named_as_pil_names_it(encoded, pictures, kept):
    samples = pictures(encoded)
    content = samples.path(6).read_bytes()
    samples.path(6).write_bytes(content[: int(kept * len(content))])
    with (
        DaliLoader(samples=samples, transform=PIPELINE, batch_size=4, seed=0) as loader,
        pytest.raises(SampleError, match=r"sample 6 \(.*06.jpg\) "),
    ):
        list(loader.epoch(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_gpu_makes_the_same_pictures_within_two_grey_levels(encode_image, pictures, through):
    encoded = [encode_image(150 + 10 * k, 120, seed=k, quality=92) for k in range(9)]
    for batch, expected in through(pictures(encoded), PIPELINE, device="cuda"):
        assert batch.data.is_cuda and batch.extra["masks"].is_cuda
        assert_same(batch, expected, 2.0)
