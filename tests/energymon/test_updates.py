import pytest

from energymon.sensors.updates import updates

MS = 10**6


def test_the_time_between_changes_is_the_period():
    shown = [(t * MS, t // 20) for t in range(200)]
    found = updates(shown)
    assert (found.median_ms, found.longest_ms) == (20, 20)


def test_the_longest_wait_is_told_beside_the_median():
    found = updates([(0, 0), (10 * MS, 1), (20 * MS, 2), (50 * MS, 3), (60 * MS, 4)])
    assert (found.median_ms, found.longest_ms) == (10, 30)


@pytest.mark.parametrize("shown", [[], [(0, 1)], [(0, 1), (MS, 1)], [(0, 1), (MS, 2), (2 * MS, 2)]])
def test_fewer_than_two_changes_tell_nothing(shown):
    assert updates(shown) is None
