"""Draws whose distribution is right for any number of them."""

import numpy as np
import pytest

from harness.datasets.generate import normal_deviates, quantiles


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
