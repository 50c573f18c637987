"""From the controller's time, or that of a wall clock, to a node's, by the offsets that it stored; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from energymon.clock.monotonic import UNNOTICED_NS
from energymon.reading import ClockOffset

CONTROLLER: Final = "controller"
"""Peer of an offset that was measured against the controller."""
WALL: Final = "wall"
"""Peer of an offset of the node's wall clock against the clock of its readings, which nobody sets."""

_DRIFT: Final = 100e-6
"""How fast two clocks may drift apart since the last measurement: quartz of ±50 ppm on either side. Clocks that
NTP steers stay far below; of 20,000 hosts the median oscillator was off by 78 ppm before NTP steered it (Mills,
Computer Network Time Synchronization, chapter 15)."""
_FOREVER_NS: Final = 2**63


class Offset(NamedTuple):
    """How far the controller's clock is ahead of a node's at one instant."""

    offset_ns: int
    error_ns: int
    """Bound of the error: of the measurements, and of the drift since."""

    def to_node(self, controller_ns: int) -> int:
        """Return the node's time, UTC ns, at an instant of the controller's."""
        return controller_ns - self.offset_ns


class WallInstant(NamedTuple):
    """An instant of a wall clock by the clock of the node's readings."""

    t_ns: int
    """When it was, ns; when it was first, where it was twice; when the clock was set ahead over it, where it never
    was."""
    times: int = 1
    """How often it was: 0, 1 or more."""


class _ClockSpan(NamedTuple):
    """A span of a node's time in which its wall clock was not set."""

    first_ns: int
    last_ns: int
    offset_ns: int
    """The wall clock minus the node's, ns."""


def at_wall(clocks: Iterable[ClockOffset], utc_ns: int, since_ns: int = 0) -> WallInstant:
    """Return when a node's wall clock showed an instant, UTC ns, by the clock of its readings.

    An instant before `since_ns`, when the node's first agent started, does not count where there is another answer.
    """
    pieces = _pieces(clocks)
    found = sorted({utc_ns - p.offset_ns for p in pieces if p.first_ns <= utc_ns - p.offset_ns < p.last_ns})
    found = [t_ns for t_ns in found if t_ns >= since_ns] or found
    if not found:
        return WallInstant(min(p.first_ns for p in pieces if p.first_ns + p.offset_ns > utc_ns), 0)
    return WallInstant(found[0], len(found))


def wall_at(clocks: Iterable[ClockOffset], node_ns: int) -> int:
    """Return what a node's wall clock showed at an instant of the clock of its readings, UTC ns."""
    return node_ns + next(p.offset_ns for p in _pieces(clocks) if node_ns < p.last_ns)


def _pieces(clocks: Iterable[ClockOffset]) -> list[_ClockSpan]:
    """Return the spans of a node's time by the offset of its wall clock, in order.

    Where it is not known when within a span the clock was set, that span belongs to both offsets.
    """
    found = [_ClockSpan(-_FOREVER_NS, _FOREVER_NS, 0)]
    for c in sorted(clocks, key=lambda c: c.t_ns):
        if c.peer == WALL and abs(c.offset_ns - found[-1].offset_ns) >= UNNOTICED_NS:
            found[-1] = found[-1]._replace(last_ns=c.t_ns)
            found.append(_ClockSpan(c.t_ns - c.error_ns, _FOREVER_NS, c.offset_ns))
    return found


def offset_at(clocks: Iterable[ClockOffset], controller_ns: int) -> Offset | None:
    """Return one node's offset at an instant of the controller's time, UTC ns; None when it measured none.

    Between two measurements the offset is interpolated, outside them the nearest holds.
    """
    measured = sorted((c for c in clocks if c.peer == CONTROLLER), key=lambda c: c.t_ns)
    if not measured:
        return None
    found = Offset(0, 0)
    # The offset is stored by the node's time, which follows from the offset; the two settle.
    for _ in range(4):
        before, found = found, _offset(measured, found.to_node(controller_ns))
        if before == found:
            break
    return found


def _offset(measured: Sequence[ClockOffset], node_ns: int) -> Offset:
    for a, b in pairwise(measured):
        if a.t_ns <= node_ns < b.t_ns:
            share, change_ns = (node_ns - a.t_ns) / (b.t_ns - a.t_ns), b.offset_ns - a.offset_ns
            # It may have moved at any time between the two, but no faster than clocks drift.
            moved_ns = abs(change_ns) * max(share, 1 - share)
            drift_ns = (_DRIFT + abs(change_ns) / (b.t_ns - a.t_ns)) * min(node_ns - a.t_ns, b.t_ns - node_ns)
            error_ns = max(a.error_ns, b.error_ns) + round(min(moved_ns, drift_ns))
            return Offset(round(a.offset_ns + change_ns * share), error_ns)
    nearest = measured[0] if node_ns < measured[0].t_ns else measured[-1]
    return Offset(nearest.offset_ns, nearest.error_ns + round(_DRIFT * abs(node_ns - nearest.t_ns)))
