"""Sums across restarts of an agent, from the hardware counters that its series began with; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from energymon.analysis.curve import SERIES
from energymon.clock.monotonic import NS, UNNOTICED_NS
from energymon.reading import START, CounterStart, Event, Reading, Session

_LAG_NS: Final = NS // 5  # a counter's values may be so much further apart than their readings, each some 100 ms old


class _Unknown(Exception):
    """The joules between two sessions are unknown; says why."""


def bridged(readings: Sequence[Reading], starts: Sequence[CounterStart], sessions: Sequence[Session]) -> list[Reading]:
    """Return readings of which each agent's joules go on from those of the agent before it, where that is known.

    The energy in between is the difference of the hardware counter that both have read, `starts`. Where it is not known
    the reading keeps its flag START. Readings come by series, then tick, as from a store.
    """
    if len(sessions) < 2 or not any(reading.flags == START for reading in readings):
        return list(readings)
    found: list[Reading] = []
    before: Reading | None = None
    shift_j = 0.0
    for reading in readings:
        flags = reading.flags
        if before is None or SERIES(reading) != SERIES(before):
            shift_j = 0.0
        elif flags == START:
            try:
                shift_j += before.joules + _between_j(before, reading, starts, sessions) - reading.joules
                flags = ""
            except _Unknown:
                shift_j = 0.0
        found.append(reading._replace(joules=reading.joules + shift_j, flags=flags))
        before = reading
    return found


def restarts(readings: Iterable[Reading], starts: Sequence[CounterStart], sessions: Sequence[Session]) -> list[Event]:
    """Return what there is to know of every restart of an agent between these readings, which come as for `bridged`."""
    known: dict[str, tuple[Reading, float, list[str]]] = {}
    unknown: list[Event] = []
    for before, reading in pairwise(readings):
        if reading.flags != START or SERIES(reading) != SERIES(before):
            continue
        session = _session_of(reading, sessions)
        if session == _session_of(before, sessions):
            continue
        name = f"{reading.device} {reading.domain} ({reading.source})"
        try:
            _between_j(before, reading, starts, sessions)
        except _Unknown as error:
            message = f"{name}: the agent was started again, and windows across this instant have no figure: {error}"
            unknown.append(Event(reading.t_ns, reading.node, "restart-unknown", message))
        else:
            away_s = (reading.t_ns - before.t_ns) / NS
            _, _, names = known.setdefault(session.name if session else "", (reading, away_s, []))
            names.append(name)
    found = []
    for reading, away_s, names in known.values():
        message = f"the agent was started again after {away_s:.3f} s; the counters have the joules in between of "
        found.append(Event(reading.t_ns, reading.node, "agent-restart", message + ", ".join(names)))
    return found + unknown


def _session_of(reading: Reading, sessions: Iterable[Session]) -> Session | None:
    own = (s for s in sessions if s.node == reading.node and s.start_ns <= reading.t_ns)
    return max(own, key=lambda s: s.start_ns, default=None)


def _between_j(before: Reading, after: Reading, starts: Sequence[CounterStart], sessions: Sequence[Session]) -> float:
    """Return the joules between an agent's last reading and the next agent's first one; raises _Unknown."""
    if _session_of(before, sessions) == _session_of(after, sessions):
        raise _Unknown("it is the same agent's")
    own = [start for start in starts if SERIES(start) == SERIES(after)]
    one = max((s for s in own if s.t_ns <= before.t_ns), key=lambda s: s.t_ns, default=None)
    two = next((s for s in own if s.tick_ns == after.tick_ns), None)
    if one is None or two is None:
        raise _Unknown("what its hardware counter showed is not stored")
    if one.boot_id != two.boot_id:
        raise _Unknown("the machine was booted in between")
    if _asleep_ns(before, sessions) + UNNOTICED_NS < _asleep_ns(after, sessions):
        raise _Unknown("the machine was suspended meanwhile, and the counter may have been reset")
    if (one.counter, one.unit_j, one.wrap) != (two.counter, two.unit_j, two.wrap):
        raise _Unknown(f"the counter is another: {one.counter} before, {two.counter} after")
    last = one.raw + round((before.joules - one.joules) / one.unit_j)
    elapsed_s = (after.t_ns - before.t_ns + _LAG_NS) / NS
    max_j = max(one.max_w, two.max_w) * elapsed_s
    counts = two.raw - last
    if two.wrap is not None:
        if max_j >= two.wrap * two.unit_j:
            raise _Unknown(f"in {elapsed_s:.0f} s the counter may have wrapped, at {two.wrap * two.unit_j:.0f} J")
        counts %= two.wrap
    elif counts < 0 or two.raw * two.unit_j <= max_j:  # reset, it may have passed its old value since
        raise _Unknown("the counter was reset in between, or may have been")
    if counts * two.unit_j > max_j:
        raise _Unknown(f"the counter went by {counts * two.unit_j:.0f} J in {elapsed_s:.1f} s, which is not possible")
    return counts * two.unit_j


def _asleep_ns(reading: Reading, sessions: Sequence[Session]) -> int:
    session = _session_of(reading, sessions)
    asleep_ns = None if session is None else session.description.get("asleep_ns")
    return asleep_ns if isinstance(asleep_ns, int) else 0
