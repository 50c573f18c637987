"""The sessions of a store's agents, and long spans in parts that fit into memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from energymon.clock.monotonic import LAST_NS, NS, tick_at
from energymon.errors import WindowError
from energymon.reading import START, Session, Ticks
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
    asked = [node] if isinstance(node, str) else sorted(set(there if node is None else node))
    for name in asked:
        if name not in there:
            raise WindowError(f"no node {name!r} in this store; it has {', '.join(there) or 'none'}")
    return asked


def sessions_of(store: SqliteStore, node: str) -> Iterator[tuple[Session, int]]:
    """Yield the sessions of a node by time, and when the next one starts, UTC ns, or LAST_NS; raises StoreError."""
    own = sorted((session for session in store.sessions() if session.node == node), key=lambda s: s.start_ns)
    return zip(own, [*(session.start_ns for session in own[1:]), LAST_NS], strict=True)


def chunks(start_ns: int, end_ns: int, interval_ns: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end] in consecutive parts of some thousand ticks that meet at ticks."""
    step_ns = interval_ns * _TICKS_AT_ONCE
    cuts = range(tick_at(start_ns, interval_ns) + step_ns, end_ns, step_ns)
    return pairwise(chain([start_ns], cuts, [end_ns]))


def parts(
    ticks: Iterable[Ticks], flagged: Sequence[int], start_ns: int, end_ns: int, interval_ns: int
) -> Iterator[tuple[int, int, bool]]:
    """Yield a window in consecutive parts, and of each whether all is plain between its two ends.

    There no tick was missed and no reading has a flag. Other parts have some thousand ticks at most. `ticks` and
    `flagged` are the node's, by time; `interval_ns` is that of the session that the window ends in.
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

    Raises StoreError, and WindowError for a node that is not in the store.
    """
    for name in known_nodes(store.sessions(), node):
        for session, next_ns in sessions_of(store, name):
            begins, ends = max(start_ns, tick_at(session.start_ns, session.interval_ns)), min(end_ns, next_ns)
            if begins >= ends:
                continue
            around = store.readings(ends, ends, name)
            ends = min(ends, 1 + max((max(r.tick_ns, r.t_ns) for r in around if r.tick_ns <= ends), default=0))
            if begins < ends:
                yield session, begins, ends


def covered(store: SqliteStore, start_ns: int, end_ns: int, node: str) -> list[tuple[int, int]]:
    """Return the parts of [start, end], by the clock of the readings, UTC ns, that a session covers.

    Each lies between readings of every series that the session has there, since its last start. Raises StoreError.
    """
    found: list[tuple[int, int]] = []
    for session, ends in sessions_of(store, node):
        begin, end = max(start_ns, session.start_ns), min(end_ns, ends)
        if begin >= end:
            continue
        around = [
            sorted((r.t_ns, r[3:6], r.flags) for r in store.readings(at, at, node) if session.start_ns <= r.t_ns < ends)
            for at in (begin, end)
        ]
        first: dict[tuple[str, str, str], int] = {}
        for t_ns, series, flags in around[0]:
            if flags == START or series not in first:
                first[series] = t_ns
        last: dict[tuple[str, str, str], int] = {}
        later: set[tuple[str, str, str]] = set()
        for t_ns, series, flags in around[1]:
            if flags == START and t_ns > end:
                later.add(series)
            if series not in later:
                last[series] = t_ns
        there = [series for series in first.keys() & last.keys() if last[series] > begin and first[series] < end]
        if there:
            begin, end = max(begin, *(first[s] for s in there)), min(end, *(last[s] for s in there))
            if begin < end:
                found.append((begin, end))
    return found


def stored_spans(store: SqliteStore, node: str | Collection[str] | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield each node and from when to when it has readings, by their clock, UTC ns; raises StoreError, WindowError."""
    for name in known_nodes(store.sessions(), node):
        if found := covered(store, 0, LAST_NS, name):
            yield name, found[0][0], found[-1][1]
