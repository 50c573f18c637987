"""Images, and pictures with boxes and masks, through DALI's operators are what the pipelines make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from loaders import Batch, DaliLoader, ImageTransform, SampleError, Samples
from loaders.dali.detection import MEAN_GREY_LEVELS
from loaders.pipeline import Tensors
from loaders.pipeline.detection import DetectionPipeline
from tests.loaders.small_data import make_pictures

PIPELINE = DetectionPipeline(min_size=96, max_size=160)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[Sequence[bytes]], Samples]:
    """Makes a dataset of encoded pictures with none, one and several things."""
    return partial(make_pictures, tmp_path)


@pytest.fixture
def encoded(encode_image: Callable[..., bytes]) -> list[bytes]:
    """Pictures of every kind and of many sizes."""
    kinds: list[dict[str, Any]] = [
        {}, {"mode": "L"}, {"mode": "CMYK"}, {"exif": turned()}, {"format": "PNG"}, {"progressive": True},
    ]  # fmt: skip
    return [encode_image(60 + 37 * k % 200, 50 + 53 * k % 170, seed=k, **kinds[k % 6]) for k in range(13)]


def grey_levels(ours: torch.Tensor, theirs: torch.Tensor, std: tuple[float, float, float]) -> float:
    """Return the mean absolute difference of two images (3, H, W), in levels of 255."""
    return float(((ours.cpu() - theirs) * torch.tensor(std).view(3, 1, 1) * 255).abs().mean())


def assert_same_images(batch: Batch, expected: Tensors, most: float) -> None:
    assert batch.data.shape == expected.data.shape and torch.equal(batch.labels.cpu(), expected.labels)
    levels = [
        grey_levels(ours, theirs, ImageTransform().std) for ours, theirs in zip(batch.data, expected.data, strict=True)
    ]
    assert max(levels) < most


@pytest.mark.parametrize(
    ("width", "height", "options"),
    [
        (500, 375, {"quality": 92}),
        (500, 375, {"quality": 92, "progressive": True}),
        (300, 200, {"mode": "L"}),
        (300, 200, {"mode": "CMYK", "quality": 95}),
        (300, 200, {"exif": turned()}),
        (300, 200, {"format": "PNG"}),
        (300, 200, {"format": "PNG", "mode": "RGBA"}),
        (300, 200, {"format": "PNG", "mode": "P"}),
        (1200, 40, {}),
        (30, 900, {}),
        (1, 1, {}),
        (1600, 1200, {"quality": 90}),
    ],
)
def test_images_are_within_half_a_grey_level(encode_image, pictures, through, width, height, options):
    samples = pictures([encode_image(width, height, **options)] * 16)
    for batch, expected in through(samples, ImageTransform(), batch_size=16):
        assert_same_images(batch, expected, 0.5)


def assert_same(batch: Batch, expected: Tensors, most: float) -> None:
    assert batch.data.shape == expected.data.shape and batch.data.dtype == expected.data.dtype
    assert torch.equal(batch.labels.cpu(), expected.labels)
    assert batch.extra.keys() == expected.extra.keys()
    for name, tensor in expected.extra.items():
        assert torch.equal(batch.extra[name].cpu(), tensor), name
    for ours, theirs, (height, width) in zip(batch.data, expected.data, batch.extra["sizes"].tolist(), strict=True):
        assert not ours[:, height:].any() and not ours[:, :, width:].any()
        assert grey_levels(ours[:, :height, :width], theirs[:, :height, :width], PIPELINE.std) < most


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
@needs_gpu
def test_the_gpu_makes_the_same_pixels_within_two_grey_levels(encode_image, pictures, through):
    samples = pictures([encode_image(150 + 10 * k, 120, seed=k, quality=92) for k in range(9)])
    for batch, expected in through(samples, ImageTransform(), device="cuda"):
        assert batch.data.is_cuda
        assert_same_images(batch, expected, 2.0)
    for batch, expected in through(samples, PIPELINE, device="cuda"):
        assert batch.data.is_cuda and batch.extra["masks"].is_cuda
        assert_same(batch, expected, 2.0)
