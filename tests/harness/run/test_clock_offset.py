"""The clock of another host, from an exchange with it and from what NTP says on both."""

import pytest

from energymon import ClockOffset
from harness.run.host_energy import compute_clock_offset

MS = 1_000_000


def ntp(offset_ms, error_ms):
    return ClockOffset(0, "n", "chrony", round(offset_ms * MS), round(error_ms * MS))


@pytest.mark.parametrize(
    ("here", "there", "source", "offset_ms", "error_ms"),
    [
        (None, None, "exchange over SSH", 2.0, 1.0),
        (ntp(0.5, 0.1), None, "exchange over SSH", 2.0, 1.0),
        (ntp(0.5, 0.1), ntp(-1.0, 0.2), "chrony", 1.5, 0.3),
        (ntp(5.0, 0.1), ntp(-1.0, 0.2), "exchange over SSH", 2.0, 1.0),  # they contradict each other
        (ntp(0.5, 0.9), ntp(-1.0, 0.2), "exchange over SSH", 2.0, 1.0),  # the exchange is better
    ],
)
def test_ntp_counts_where_it_is_better_than_the_exchange_and_agrees_with_it(here, there, source, offset_ms, error_ms):
    found = compute_clock_offset(1.0 * MS, 2.0 * MS, here, there)
    assert (found.source, found.offset_ms, found.error_ms) == (
        source,
        pytest.approx(offset_ms),
        pytest.approx(error_ms),
    )
