"""Draws, patches of textures, and JPEG files of a wanted size: what generators share."""

import numpy as np
import pytest

from harness.datasets.generate import normal_deviates, quantiles
from harness.datasets.pictures import MAX_COLOUR, MAX_LIGHT, encode_to_size, patch, tinted


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


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_there_is_one_draw_in_each_equal_part_and_their_order_is_random(count):
    drawn = quantiles(np.random.default_rng(5), count)
    assert np.sort((drawn * count).astype(int)).tolist() == list(range(count))
    assert count == 1 or (np.diff(drawn) < 0).any()
    assert quantiles(np.random.default_rng(5), count).tolist() == drawn.tolist()


@pytest.mark.parametrize("count", [50, 5000])
def test_normal_deviates_have_no_mean_and_a_deviation_of_one(count):
    drawn = normal_deviates(np.random.default_rng(1), count)
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.std() == pytest.approx(1, abs=0.03)
    assert np.isfinite(drawn).all()
