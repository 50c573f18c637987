"""netem counts the packets that a regime loses as drops; those of other regimes are still counted."""

from __future__ import annotations

from harness.testbed.link.qdisc import WantedLosses


def test_drops_are_counted_again_after_a_regime_that_loses_packets():
    losses = WantedLosses()
    losses.begin(0, losing=False)
    assert losses.count_unwanted(3) == 3
    losses.begin(3, losing=True)
    assert losses.count_unwanted(500) == 3
    losses.begin(600, losing=False)
    assert losses.count_unwanted(600) == 3
    assert losses.count_unwanted(604) == 7
    losses.begin(605, losing=True)
    losses.begin(700, losing=True)
    losses.begin(800, losing=False)
    assert losses.count_unwanted(801) == 9
