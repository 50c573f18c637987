from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from harness.datasets.imagenet_like import ImagenetLike

RECIPE = ImagenetLike("images")


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
