"""Parts of painted sheets, and JPEG files of a wanted size."""

import numpy as np
import pytest

from harness.datasets.pictures.collage import MOST_COLOUR, MOST_LIGHT, sheets, tinted
from harness.datasets.pictures.jpeg import encode_to_size


@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, -1, -1), (1, -1, 1), (0, 0, 0)])
def test_the_greatest_shifts_move_every_pixel_by_as_much_and_none_around_the_end(signs):
    shift = np.array([MOST_LIGHT, MOST_COLOUR, MOST_COLOUR]) * signs
    for number in range(4):
        part = sheets(3, 128.0**2).patch(number, (7, 1 << 30), 200, 150)
        moved = np.asarray(tinted(part, *shift.tolist())).astype(int) - np.asarray(part)
        assert (moved == shift).all()


def test_a_part_larger_than_a_sheet_goes_on_without_a_seam():
    part = np.asarray(sheets(3, 128.0**2).patch(1, (123, 45), 900, 700)).astype(int)
    assert part.shape == (700, 900, 3)
    across, down = (np.abs(np.diff(part[..., 0], axis=axis)).mean(axis=1 - axis) for axis in (1, 0))
    for steps in (across, down):
        assert steps.max() < 3 * np.median(steps)


@pytest.mark.parametrize("bits_per_pixel", [1.5, 3.0, 5.0, 8.0])
def test_files_have_the_wanted_size_from_few_bits_to_many(bits_per_pixel):
    part = sheets(3, 400.0 * 300).patch(2, (1, 2), 400, 300)
    wanted = int(bits_per_pixel / 8 * 400 * 300)
    assert len(encode_to_size(part, wanted)) == pytest.approx(wanted, rel=0.07)
