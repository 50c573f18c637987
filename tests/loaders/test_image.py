from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from loaders.errors import LoaderError
from loaders.pipeline import UndecodableError
from loaders.pipeline.image import ImageTransform, decode, epoch_order

SIDES = st.integers(1, 4000)


def test_an_epoch_order_is_a_permutation_that_seed_and_epoch_change() -> None:
    orders = [epoch_order(500, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(500))
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_orders_and_crops_are_the_same_on_every_machine_and_for_ever() -> None:
    assert epoch_order(8, seed=3, epoch=2).tolist() == [5, 1, 6, 3, 7, 0, 4, 2]
    crop = ImageTransform().crop_box(seed=3, epoch=2, sample_id=7, width=500, height=375)
    assert (crop.x, crop.y, crop.width, crop.height, crop.flip) == (58, 4, 416, 351, True)


def test_a_negative_or_huge_seed_is_as_good_as_any() -> None:
    assert sorted(epoch_order(10, seed=-5, epoch=0).tolist()) == list(range(10))
    assert sorted(epoch_order(10, seed=2**80, epoch=0).tolist()) == list(range(10))


def test_what_is_drawn_for_a_sample_does_not_depend_on_its_batch() -> None:
    transform = ImageTransform()
    together = transform.draws(seed=1, epoch=4, ids=np.arange(50))
    alone = transform.draws(seed=1, epoch=4, ids=np.array([31]))
    assert np.array_equal(together[31:32], alone)


@settings(deadline=None, max_examples=200)
@given(width=SIDES, height=SIDES, seed=st.integers(0, 2**32), sample_id=st.integers(0, 2**31))
def test_a_crop_lies_inside_its_image(width: int, height: int, seed: int, sample_id: int) -> None:
    crop = ImageTransform().crop_box(seed=seed, epoch=0, sample_id=sample_id, width=width, height=height)
    left, upper, right, lower = crop.box
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height


def test_crops_of_an_ordinary_image_have_the_asked_areas_and_ratios() -> None:
    transform = ImageTransform()
    draws = transform.draws(seed=0, epoch=0, ids=np.arange(4000))
    crops = [transform.crop(draw, 500, 375) for draw in draws]
    areas = np.array([crop.width * crop.height for crop in crops]) / (500 * 375)
    ratios = np.array([crop.width / crop.height for crop in crops])
    assert 0.075 < areas.min() < 0.1
    assert areas.max() > 0.95
    assert ratios.min() > 0.74
    assert ratios.max() < 1.35
    assert abs(np.mean([crop.flip for crop in crops]) - 0.5) < 0.03


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000)])
def test_an_image_that_no_attempt_fits_gives_its_largest_central_crop(width: int, height: int) -> None:
    crop = ImageTransform(scale=(1.0, 1.0)).crop_box(seed=0, epoch=0, sample_id=0, width=width, height=height)
    assert {crop.width, crop.height} == {10, 13}
    assert crop.x + crop.width / 2 == pytest.approx(width / 2, abs=1)
    assert crop.y + crop.height / 2 == pytest.approx(height / 2, abs=1)


def test_a_transformed_image_is_the_normalised_crop(encode_image: Callable[..., bytes]) -> None:
    encoded = encode_image(300, 200)
    transform = ImageTransform(size=64, flip=1.0)
    result = transform.apply(encoded, seed=5, epoch=1, sample_id=9)
    crop = transform.crop_box(seed=5, epoch=1, sample_id=9, width=300, height=200)
    small = decode(encoded).crop(crop.box).resize((64, 64), Image.Resampling.BILINEAR)
    pixels = np.asarray(small, np.float32)[:, ::-1] / 255
    expected = ((pixels - transform.mean) / transform.std).transpose(2, 0, 1).astype(np.float32)
    assert result.shape == (3, 64, 64)
    assert result.is_contiguous()
    torch.testing.assert_close(result, torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_no_flip_and_always_flip_mirror_each_other(encode_image: Callable[..., bytes]) -> None:
    encoded = encode_image(100, 100)
    never, always = (
        ImageTransform(size=32, flip=flip).apply(encoded, seed=0, epoch=0, sample_id=0) for flip in (0.0, 1.0)
    )
    assert torch.equal(never.flip(2), always)


def test_bytes_that_are_no_whole_image_are_refused(encode_image: Callable[..., bytes]) -> None:
    whole = encode_image(200, 150)
    png = encode_image(200, 150, format="PNG")
    for encoded in (b"", b"hello", whole[: len(whole) // 2], whole[:-60], png[: len(png) // 2]):
        with pytest.raises(UndecodableError, match="not a whole image") as caught:
            ImageTransform().apply(encoded, seed=0, epoch=0, sample_id=0)
        assert isinstance(caught.value, LoaderError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"scale": (0.0, 1.0)},
        {"scale": (0.5, 1.5)},
        {"ratio": (2.0, 1.0)},
        {"flip": 1.5},
        {"std": (0.0, 1, 1)},
    ],
)
def test_a_transform_that_cannot_be_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"transform.{next(iter(wrong))}="):
        ImageTransform(**wrong)  # type: ignore[arg-type]
