from __future__ import annotations

import pytest

from harness.testbed.link.delay_calibration import Calibration, calibrate


class PretendLink:
    """A link whose round trip is twice the delay and a constant overhead."""

    def __init__(self, overhead_ms: float) -> None:
        self.overhead_ms = overhead_ms
        self.delay_ms = 0.0

    def set_delay(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms

    def measure(self, _seconds: float) -> float:
        return 2 * self.delay_ms + self.overhead_ms


@pytest.mark.parametrize("rtt_ms", [1.0, 10.0, 30.0, 150.0])
def test_the_links_own_time_is_taken_off_the_delay(rtt_ms):
    link = PretendLink(overhead_ms=0.4)
    found = calibrate(rtt_ms, 0.3, link.set_delay, link.measure)
    assert link.measure(0) == pytest.approx(rtt_ms, rel=0.003, abs=0.02)
    assert found.delay_ms == link.delay_ms
    assert found.measured_ms == link.measure(0)


def test_a_link_slower_than_the_regime_gets_no_delay_at_all():
    link = PretendLink(overhead_ms=0.2)
    assert calibrate(0.1, 0.2, link.set_delay, link.measure).delay_ms == 0.0
    assert link.delay_ms == 0.0


def test_one_disturbed_measurement_does_not_decide():
    link = PretendLink(overhead_ms=0.1)
    answers = iter([1.9, None, None])

    def measure(seconds: float) -> float:
        return next(answers) or link.measure(seconds)

    found = calibrate(1.0, 0.1, link.set_delay, measure)
    assert 2 * found.delay_ms + link.overhead_ms == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("rtt_ms", "measured_ms", "good"), [(0.1, 0.14, True), (0.1, 0.3, False), (30.0, 30.2, True), (30.0, 31.0, False)]
)
def test_a_calibration_that_missed_is_not_used_again(rtt_ms, measured_ms, good):
    assert Calibration(rtt_ms, rtt_ms / 2, measured_ms).is_good is good


def test_what_a_busy_host_adds_for_a_while_does_not_take_the_delay_away():
    link = PretendLink(overhead_ms=0.2)
    found = calibrate(0.1, 0.03, link.set_delay, link.measure)
    assert 2 * found.delay_ms + 0.03 > (0.1 + 0.03) / 2
