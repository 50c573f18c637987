"""From the controller's time to a node's, by the offsets that the node measured; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from energymon.reading import ClockOffset

__all__ = ["CONTROLLER", "STEP", "Offset", "offset_at"]

CONTROLLER: Final = "controller"
"""Peer of an offset that was measured against the controller."""
STEP: Final = "step"
"""Peer of an offset that is a step of the node's own clock: how far it was set ahead, ns."""

_DRIFT: Final = 100e-6
"""How fast two clocks may drift apart since the last measurement: quartz of ±50 ppm on either side. Clocks that
NTP steers stay far below; of 20,000 hosts the median oscillator was off by 78 ppm before NTP steered it (Mills,
Computer Network Time Synchronization, chapter 15)."""
_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the controller's clock is ahead of a node's at one instant."""

    offset_ns: int
    error_ns: int
    """Bound of the error: of the measurements, and of the drift since."""

    def to_node(self, controller_ns: int) -> int:
        """Return the node's time, UTC ns, at an instant of the controller's."""
        return controller_ns - self.offset_ns


def offset_at(clocks: Iterable[ClockOffset], controller_ns: int) -> Offset | None:
    """Return one node's offset at an instant of the controller's time, UTC ns; None when it measured none.

    Between two measurements the offset is interpolated, outside them the nearest holds. Steps of the node's clock
    in between are accounted for.
    """
    told = sorted(clocks, key=lambda c: c.t_ns)
    measured = [c for c in told if c.peer == CONTROLLER]
    steps = [c for c in told if c.peer == STEP]
    if not measured:
        return None
    found = Offset(0, 0)
    # The offset is told by the node's time, which follows from the offset: a step apart at most, so this settles.
    for _ in range(_ROUNDS):
        node_ns = found.to_node(controller_ns)
        before, found = found, _offset(measured, steps, node_ns)
        if before == found:
            break
    return found


def _offset(measured: Sequence[ClockOffset], steps: Sequence[ClockOffset], node_ns: int) -> Offset:
    carried = [(c.t_ns, c.offset_ns + _stepped_ns(steps, node_ns, c.t_ns), c.error_ns) for c in measured]
    for (t1, offset1, error1), (t2, offset2, error2) in pairwise(carried):
        if t1 <= node_ns < t2:
            share = (node_ns - t1) / (t2 - t1)
            # It may have moved at any time between the two, but no faster than clocks drift.
            moved_ns = abs(offset2 - offset1) * max(share, 1 - share)
            drift_ns = (_DRIFT + abs(offset2 - offset1) / (t2 - t1)) * min(node_ns - t1, t2 - node_ns)
            return Offset(
                round(offset1 + (offset2 - offset1) * share), max(error1, error2) + round(min(moved_ns, drift_ns))
            )
    t, offset, error = carried[0] if node_ns < carried[0][0] else carried[-1]
    return Offset(offset, error + round(_DRIFT * abs(node_ns - t)))


def _stepped_ns(steps: Sequence[ClockOffset], node_ns: int, measured_ns: int) -> int:
    """Return by how much the offset at `node_ns` differs from that at `measured_ns` for the steps between them."""
    after = sum(s.offset_ns for s in steps if measured_ns < s.t_ns <= node_ns)
    before = sum(s.offset_ns for s in steps if node_ns < s.t_ns <= measured_ns)
    return before - after
