"""Patches of textures, JPEG files of a wanted size, and the pictures of ImageNet's sizes that are made of them."""

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from harness.datasets.imagenet_like import ImagenetLike, SmallPictures
from harness.datasets.pictures import MAX_COLOUR, MAX_LIGHT, encode_to_size, patch, tinted

RECIPE = ImagenetLike("images")


@pytest.mark.parametrize("light", [MAX_LIGHT, -MAX_LIGHT, 0])
@pytest.mark.parametrize("hue", [0.0, 0.25, 0.5, 0.75])
def test_the_greatest_shifts_move_every_pixel_by_as_much_and_none_around_the_end(light, hue):
    turned = {0.0: (1, 0), 0.25: (0, 1), 0.5: (-1, 0), 0.75: (0, -1)}[hue]
    for texture in range(4):
        part = patch(3, (texture, 7, 1 << 30), 200, 150)
        moved = np.asarray(tinted(part, light, hue, MAX_COLOUR)).astype(int) - np.asarray(part)
        assert (moved == (light, turned[0] * MAX_COLOUR, turned[1] * MAX_COLOUR)).all()


def test_a_patch_larger_than_a_texture_goes_on_without_a_seam():
    part = np.asarray(patch(3, (1, 123, 45), 900, 700)).astype(int)
    assert part.shape == (700, 900, 3)
    across, down = (np.abs(np.diff(part[..., 0], axis=axis)).mean(axis=1 - axis) for axis in (1, 0))
    for steps in (across, down):
        assert steps.max() < 3 * np.median(steps)


@pytest.mark.parametrize("texture", range(4))
@pytest.mark.parametrize("bits_per_pixel", [1.5, 3.0, 5.0, 7.5])
def test_files_have_the_wanted_size_from_few_bits_to_many(texture, bits_per_pixel):
    part = patch(3, (texture, 1, 2), 400, 300)
    wanted = int(bits_per_pixel / 8 * 400 * 300)
    assert len(encode_to_size(part, wanted)) == pytest.approx(wanted, rel=0.07)


def decoded(data):
    return Image.open(BytesIO(data))


@pytest.mark.parametrize("samples", [50, 500, 5000])
@pytest.mark.parametrize("seed", [0, 7])
def test_wanted_sizes_are_log_normal_with_the_mean_asked_for(samples, seed):
    logs = np.log(replace(RECIPE, samples=samples, seed=seed).sizes)
    assert np.exp(logs).mean() == pytest.approx(115_000, rel=0.03)
    assert logs.std() == pytest.approx(0.5, rel=0.1)
    standard = (logs - logs.mean()) / logs.std()
    assert abs((standard**3).mean()) < 0.5


def test_files_of_small_pictures_are_as_large_and_have_a_tenth_of_the_pixels():
    small = SmallPictures("images", picture_share=0.1)
    assert (small.sizes == RECIPE.sizes).all()
    for sample_id in np.argsort(RECIPE.sizes)[[0, 250, 499]].tolist():
        data = small.image(sample_id)
        assert len(data) == pytest.approx(int(small.sizes[sample_id]), abs=4)
        pixels = np.prod(decoded(data).convert("RGB").size)
        assert pixels == pytest.approx(0.1 * np.prod(decoded(RECIPE.image(sample_id)).size), rel=0.4)


def test_encoded_sizes_are_near_the_wanted_ones_from_the_smallest_to_the_largest():
    order = np.argsort(RECIPE.sizes)
    for sample_id in order[[0, 10, 100, 250, 400, 490, 499]]:
        assert len(RECIPE.image(int(sample_id))) == pytest.approx(int(RECIPE.sizes[sample_id]), rel=0.1)


def test_pictures_are_rgb_jpegs_of_about_imagenets_dimensions():
    dimensions = []
    for sample_id in range(0, 500, 50):
        picture = decoded(RECIPE.image(sample_id))
        assert (picture.format, picture.mode) == ("JPEG", "RGB")
        dimensions.append(picture.size)
    areas = [width * height for width, height in dimensions]
    assert np.median(areas) == pytest.approx(500 * 375, rel=0.3)
    assert len(set(dimensions)) > 5


def test_paths_stand_in_the_order_of_ids_and_classes_are_even():
    paths = replace(RECIPE, samples=1200, classes=7).paths()
    assert list(paths) == sorted(paths)
    counts = np.bincount(replace(RECIPE, samples=1200, classes=7).labels())
    assert counts.max() - counts.min() <= 1


def test_pictures_take_as_many_coefficients_and_as_fine_a_quantiser_as_photographs():
    # What a decoder's time depends on beside pixels and bytes. Measured of the pictures painted as scenes of occluding,
    # lit surfaces (Lee, Mumford and Huang, 2001): a mean step of 10 and 72 % of the coefficients.
    steps, coefficients = [], []
    cosines = np.cos(np.pi * np.outer(np.arange(8), 2 * np.arange(8) + 1) / 16) / 2
    cosines[0] /= np.sqrt(2)
    for sample_id in range(0, 500, 25):
        picture = decoded(RECIPE.image(sample_id))
        table = np.array(picture.quantization[0]).reshape(8, 8)
        luma = np.asarray(picture.convert("YCbCr"), float)[:256, :256, 0] - 128
        height, width = (edge // 8 for edge in luma.shape)
        blocks = luma[: 8 * height, : 8 * width].reshape(height, 8, width, 8).transpose(0, 2, 1, 3)
        coefficients.append((np.rint(cosines @ blocks @ cosines.T / table) != 0).mean())
        steps.append(table.mean())
    assert np.mean(steps) == pytest.approx(10, rel=0.3)
    assert np.mean(coefficients) == pytest.approx(0.72, rel=0.1)
