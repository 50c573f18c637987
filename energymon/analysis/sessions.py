"""The sessions of a store's agents, and long spans in parts that fit into memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from energymon.clock.monotonic import LAST_NS, NS, tick_at
from energymon.errors import WindowError
from energymon.reading import START, Reading, Session, Ticks
from energymon.store import SqliteStore

_TICKS_AT_ONCE: Final = 5000
_AROUND: Final = 4
"""Ticks beside a missed tick or a flag that are read with it."""
_STANDS_NS: Final = 4 * NS
"""Longer than a counter may show one value and not be taken for frozen."""
_LEAST_TICKS: Final = 50
"""Fewer are quicker read than left out."""


def known_nodes(sessions: Sequence[Session], node: str | Collection[str] | None = None) -> list[str]:
    """Return the nodes asked for, or all, sorted; raises WindowError for one that has no session."""
    there = sorted({session.node for session in sessions})
    if node is None:
        return there
    asked = [node] if isinstance(node, str) else sorted(set(node))
    for name in asked:
        if name not in there:
            raise WindowError(f"no node {name!r} in this store; it has {', '.join(there) or 'none'}")
    return asked


def chunks(start_ns: int, end_ns: int, interval_ns: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end] in consecutive parts of some thousand ticks that meet at ticks."""
    begin = start_ns
    while True:
        stop = min(end_ns, tick_at(begin, interval_ns) + interval_ns * _TICKS_AT_ONCE)
        yield begin, stop
        if stop >= end_ns:
            return
        begin = stop


def parts(
    ticks: Iterable[Ticks], flagged: Sequence[int], start_ns: int, end_ns: int, interval_ns: int
) -> Iterator[tuple[int, int, bool]]:
    """Yield a window in consecutive parts, and of each whether all is plain between its two ends.

    That is where no tick was missed and no reading has a flag: the joules of the part are the difference of the
    cumulative joules at its ends. Other parts have some thousand ticks at most.

    Args:
        ticks: The node's ticks in the window, by time.
        flagged: The ticks of the readings that have a flag, in order.
        start_ns: Start of the window, UTC ns.
        end_ns: End of the window, UTC ns.
        interval_ns: Time between two ticks of the session that the window ends in, ns.
    """
    begin, taken = start_ns, 0
    for t in ticks:
        first, last = max(t.first_ns, start_ns), min(t.last_ns, end_ns)
        plain = not t.missed and 0 < t.interval_ns <= interval_ns
        cuts = flagged[bisect_left(flagged, first) : bisect_right(flagged, last)] if plain else ()
        for one, two in pairwise([first, *cuts, last]):
            # The edges of the window are bounded by readings as far away as a counter may stand still.
            after = max(one, start_ns + _STANDS_NS) + _AROUND * interval_ns
            before = min(two, end_ns - _STANDS_NS) - _AROUND * interval_ns
            if plain and after + _LEAST_TICKS * interval_ns < before:
                yield begin, after, False
                yield after, before, True
                begin, taken = before, 0
                continue
            step_ns = _TICKS_AT_ONCE * max(t.interval_ns, 1)
            for at in range(one, two + 1, step_ns):
                count = min(_TICKS_AT_ONCE, (two - at) // max(t.interval_ns, 1) + 1)
                if taken + count > _TICKS_AT_ONCE and begin < at:
                    yield begin, at, False
                    begin, taken = at, 0
                taken += count
    yield begin, end_ns, False


def session_spans(
    store: SqliteStore, start_ns: int, end_ns: int, node: str | None = None
) -> Iterator[tuple[Session, int, int]]:
    """Yield each session within [start, end), by node and time, and from when to when it has readings, UTC ns.

    A session ends where the node's next one starts, or just after its last tick. Raises StoreError, and WindowError for
    a node that is not in the store.
    """
    sessions = store.sessions()
    for name in known_nodes(sessions, node):
        own = sorted((s for s in sessions if s.node == name), key=lambda s: s.start_ns)
        for i, session in enumerate(own):
            ends = end_ns if i + 1 == len(own) else min(end_ns, own[i + 1].start_ns)
            ends = min(ends, LAST_NS)
            begins = max(start_ns, tick_at(session.start_ns, session.interval_ns))
            if begins >= ends:
                continue
            around = store.readings(ends, ends, name)
            ends = min(ends, 1 + max((max(r.tick_ns, r.t_ns) for r in around if r.tick_ns <= ends), default=0))
            if begins < ends:
                yield session, begins, ends


def covered(store: SqliteStore, start_ns: int, end_ns: int, node: str) -> list[tuple[int, int]]:
    """Return the parts of [start, end], by the clock of the readings, UTC ns, that a session covers.

    Each lies between readings of every series that the session has in the window. Raises StoreError.
    """
    found: list[tuple[int, int]] = []
    own = sorted((s for s in store.sessions() if s.node == node), key=lambda s: s.start_ns)
    for session, ends in zip(own, [*(s.start_ns for s in own[1:]), LAST_NS], strict=True):
        begin, end = max(start_ns, session.start_ns), min(end_ns, ends)
        if begin >= end:
            continue
        first = _times(store.readings(begin, begin, node), session.start_ns, ends)
        last = _times(store.readings(end, end, node), session.start_ns, ends, until_ns=end)
        there = [key for key in first.keys() & last.keys() if max(last[key]) > begin and min(first[key]) < end]
        if there:
            begin = max(begin, *(min(first[key]) for key in there))
            end = min(end, *(max(last[key]) for key in there))
            if begin < end:
                found.append((begin, end))
    return found


def stored_spans(store: SqliteStore, node: str | Collection[str] | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield each node, and from when to when the store has its readings, by their clock, UTC ns.

    Raises StoreError, and WindowError for a node that is not in the store.
    """
    for name in known_nodes(store.sessions(), node):
        if found := covered(store, 0, LAST_NS, name):
            yield name, found[0][0], found[-1][1]


def _times(
    readings: Iterable[Reading], start_ns: int, end_ns: int, until_ns: int | None = None
) -> dict[tuple[str, str, str], list[int]]:
    """Return when each series was read in [start, end), UTC ns: since it last started, or before it does `until_ns`."""
    times: dict[tuple[str, str, str], list[int]] = {}
    started: set[tuple[str, str, str]] = set()
    for r in sorted(readings, key=lambda r: r.t_ns):
        key = (r.device, r.domain, r.source)
        if not start_ns <= r.t_ns < end_ns:
            continue
        if r.flags == START and until_ns is None:
            times.pop(key, None)
        elif r.flags == START and until_ns is not None and r.t_ns > until_ns:
            started.add(key)
        if key not in started:
            times.setdefault(key, []).append(r.t_ns)
    return times
