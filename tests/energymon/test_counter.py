import pytest

from energymon.errors import CounterError
from energymon.reading import INTERPOLATED, START
from energymon.sensors.counter import Counter, PowerIntegral

S = 1_000_000_000
WRAP = 1_000_000_000  # 1000 J in microjoules


def counter(**changes) -> Counter:
    return Counter(**{"unit_j": 1e-6, "wrap": WRAP, "max_w": 100.0, "lag_s": 0.001, **changes})


def test_the_first_reading_starts_at_zero():
    assert counter().update(123, 0) == (0.0, START)


@pytest.mark.parametrize("garbage", [0, 5, 900_000_000, WRAP, WRAP + 1, -1])
def test_one_garbage_value_is_refused_and_costs_no_energy(garbage):
    c = counter()
    c.update(500_000_000, 0)
    with pytest.raises(CounterError):
        c.update(garbage, S // 10)
    assert c.update(510_000_000, 2 * S // 10) == (pytest.approx(10.0), "")


def test_a_reset_begins_a_new_segment_from_the_second_reading_after_it():
    c = counter()
    c.update(500_000_000, 0)
    assert c.update(505_000_000, S // 10)[0] == pytest.approx(5.0)
    with pytest.raises(CounterError, match=r"505000000 to 7.* W"):
        c.update(7, 2 * S // 10)
    assert c.update(1_000_007, 3 * S // 10) == (pytest.approx(5.0), START)
    assert c.update(2_000_007, 4 * S // 10) == (pytest.approx(6.0), "")


def test_a_counter_without_wrap_that_goes_back_was_reset():
    c = counter(wrap=None)
    c.update(500, 0)
    with pytest.raises(CounterError, match="500 to 3"):
        c.update(3, S)
    assert c.update(4, 2 * S)[1] == START


def test_an_outage_in_which_the_counter_may_have_wrapped_twice_begins_a_new_segment():
    c = counter()
    c.update(0, 0)
    assert c.update(1, 9 * S)[1] == ""
    assert c.update(2, 20 * S) == (pytest.approx(1e-6), START)
    assert c.why == "may wrap in 10 s, and two readings are 11 s apart"


def test_an_update_that_took_longer_than_any_before_is_no_impossible_power():
    c = counter(wrap=None)
    for at_ms in range(100):
        c.update(85_000 * at_ms, at_ms * S // 1000)
    # The next update comes after 80 ms, between two readings that are 0.3 ms apart.
    assert c.update(85_000 * 99, 1789 * S // 10_000)[1] == ""
    assert c.update(85_000 * 179, 1792 * S // 10_000) == (pytest.approx(0.085 * 179), "")


def test_a_young_counter_that_may_have_been_reset_while_it_could_not_be_read_begins_a_new_segment():
    c = counter(wrap=None)
    c.update(300_000_000, 0)
    c.update(310_000_000, S // 10)
    c.interrupt()
    # 100 W is possible: in 7 s the counter may have come from 0 to 600 J and past its old value.
    assert c.update(600_000_000, 7 * S) == (pytest.approx(10.0), START)
    assert c.why == "may have been reset in the 6.9 s between two readings"
    assert c.update(601_000_000, 8 * S) == (pytest.approx(11.0), "")


def test_a_counter_that_is_higher_than_one_that_was_reset_can_be_goes_on_after_an_outage():
    c = counter(wrap=None)
    c.update(3_000_000_000, 0)
    c.interrupt()
    assert c.update(3_500_000_000, 7 * S) == (pytest.approx(500.0), "")
    assert c.update(3_501_000_000, 8 * S) == (pytest.approx(501.0), "")


def test_a_counter_that_wraps_is_the_hardwares_and_goes_on_after_an_outage():
    c = counter()
    c.update(300_000_000, 0)
    c.interrupt()
    assert c.update(600_000_000, 7 * S) == (pytest.approx(300.0), "")


def test_a_frozen_counter_is_told_and_its_jump_is_counted_when_it_moves_again():
    c = counter()
    c.update(1_000_000, 0)
    assert c.update(1_000_000, 2 * S) == (0.0, "")
    with pytest.raises(CounterError, match="frozen"):
        c.update(1_000_000, 3 * S)
    assert c.update(51_000_000, 4 * S) == (pytest.approx(50.0), "")


def test_power_is_integrated_by_trapezoids_and_a_gap_is_flagged():
    p = PowerIntegral(interval_ns=S // 10)
    assert p.update(100.0, 0) == (0.0, START)
    assert p.update(200.0, S // 10) == (pytest.approx(15.0), "")
    assert p.update(200.0, 4 * S // 10) == (pytest.approx(75.0), INTERPOLATED)


def test_power_across_an_outage_is_unknown_and_a_new_segment_begins():
    p = PowerIntegral(interval_ns=S // 10)
    p.update(500.0, 0)
    p.update(500.0, S // 10)
    assert p.update(500.0, 31 * S // 10) == (pytest.approx(50.0), START)
    assert p.update(500.0, 32 * S // 10) == (pytest.approx(100.0), "")


def test_a_value_that_is_as_old_as_the_last_is_no_outage_while_it_is_asked_for_in_time():
    p = PowerIntegral(interval_ns=S // 10)
    p.update(100.0, 0, 0)
    for k in range(1, 10):
        assert p.update(100.0, 0, k * S // 10) == (0.0, "")
    assert p.update(100.0, S, S) == (pytest.approx(100.0), "")
