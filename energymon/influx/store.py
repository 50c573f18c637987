"""The readings of any number of hosts in one InfluxDB bucket, as their senders brought them there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from energymon.errors import StoreError
from energymon.influx.client import explain
from energymon.influx.lineprotocol import (
    BASELINES,
    CLOCKS,
    COUNTERS,
    ENERGY,
    EVENTS,
    SESSIONS,
    TICKS,
    tag_text,
    tag_value,
    to_baseline,
    to_clock,
    to_counter,
    to_event,
    to_reading,
    to_session,
    to_tick,
)
from energymon.influx.queries import MAX_NS, MIN_NS, PointReader, Series
from energymon.influx.settings import InfluxSettings
from energymon.reading import Baseline, ClockOffset, CounterStart, Event, Reading, Ticks
from energymon.stores.base import Session

_MARGIN_TICKS: Final = 4
"""Looked at before and behind a window at first; a series that has missed ticks there is followed further."""
_WIDEN: Final = 16

T = TypeVar("T")
Key = tuple[str, str, str, str]


class _Found(NamedTuple):
    """A reading, and the sessions that have it."""

    reading: Reading
    sessions: frozenset[str]


class InfluxStore:
    """A bucket open for reading.

    A node whose readings come from two agents at the same time has two counters for the same joules, and no answer:
    name the `session` to look at.
    """

    def __init__(self, settings: InfluxSettings, session: str | None = None) -> None:
        """Connect; raises StoreError when there is no InfluxDB, or one older than 1.8."""
        self._settings = settings
        self._session = session
        self._client: Any = settings.client()
        try:
            self._require_influxdb()
            self._points = PointReader(self._client, settings)
        except BaseException:
            self.close()
            raise

    def readings(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Reading]:
        """Return the readings in [start, end], UTC ns, and two more of each series on either side.

        Ordered by series, then tick. Raises StoreError, also for a node that two agents wrote at the same time.
        """
        with self._asking():
            step_ns = _MARGIN_TICKS * max((s.interval_ns for s in self._sessions(node)), default=1)
            tags = self._tags(node)
            found: dict[Key, dict[tuple[int, int, float], _Found]] = {}
            near = (start_ns - step_ns, end_ns + step_ns + 1)
            _collect(found, self._points.select(ENERGY, *near, tags))
            self._reach(found, near[0], tags, start_ns, step_ns, back=True)
            self._reach(found, near[1], tags, end_ns, step_ns, back=False)
        chosen: list[_Found] = []
        for _, rows in sorted(found.items()):
            chosen += _needed(sorted(rows.values(), key=lambda row: row.reading.tick_ns), start_ns, end_ns)
        _refuse_overlap(chosen)
        return [row.reading for row in chosen]

    def ticks(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Ticks]:
        """Return the ticks in [start, end), UTC ns, by time; raises StoreError.

        One that two sessions have is missed when either says so.
        """
        found: dict[tuple[int, str], Ticks] = {}
        with self._asking():
            for series in self._points.select(TICKS, start_ns, end_ns, self._tags(node)):
                for t_ns, fields in series.points():
                    tick = to_tick(series.tags, t_ns, fields)
                    if tick.missed or (t_ns, tick.node) not in found:
                        found[t_ns, tick.node] = tick
        return [tick for _, tick in sorted(found.items())]

    def flagged(self, start_ns: int, end_ns: int, node: str) -> list[int]:
        """Return nothing: these ticks have no interval, and no part of a window is plain."""
        return []

    def events(self, start_ns: int = 0, end_ns: int = 2**63 - 1) -> list[Event]:
        """Return the events in [start, end), UTC ns, by time; raises StoreError."""
        with self._asking():
            found = [
                (t_ns, tag_text(series.tags["node"]), int(series.tags["n"]), to_event(series.tags, t_ns, fields))
                for series in self._points.select(EVENTS, start_ns, end_ns, {})
                for t_ns, fields in series.points()
            ]
        return [event for *_, event in sorted(found, key=lambda row: row[:3])]

    def sessions(self) -> list[Session]:
        """Return the sessions of all agents in the order of their starts; raises StoreError."""
        with self._asking():
            return self._sessions(None)

    def clocks(self, node: str | None = None) -> list[ClockOffset]:
        """Return every clock offset measured, by time; raises StoreError."""
        with self._asking():
            return sorted(self._all(CLOCKS, to_clock, node), key=lambda c: (c.t_ns, c.node, c.peer))

    def baselines(self, node: str | None = None) -> list[Baseline]:
        """Return every idle baseline recorded, by time and series; raises StoreError."""
        with self._asking():
            found = self._all(BASELINES, to_baseline, node)
        return sorted(found, key=lambda b: (b.start_ns, b.node, b.device, b.domain, b.source))

    def counters(self, node: str | None = None) -> list[CounterStart]:
        """Return every counter that a series began with, by time and series; raises StoreError."""
        with self._asking():
            found = self._all(COUNTERS, to_counter, node)
        return sorted(found, key=lambda c: (c.t_ns, c.node, c.device, c.domain, c.source))

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reach(
        self,
        found: dict[Key, dict[tuple[int, int, float], _Found]],
        near_ns: int,
        tags: Mapping[str, str],
        edge_ns: int,
        step_ns: int,
        *,
        back: bool,
    ) -> None:
        """Fetch what lies beyond `near_ns` of every series that has less than two readings beyond the edge."""
        beyond: dict[Key, list[Series]] = {}
        for series in self._edge(near_ns, tags, back=back):
            beyond.setdefault(_key(series), []).append(series)
        for key, first in beyond.items():
            nearest = first
            own = {**tags, **{name: nearest[0].tags[name] for name in ("node", "device", "domain", "source")}}
            limit_ns, width_ns = near_ns, step_ns
            while nearest and _beyond(found.get(key, {}).values(), edge_ns, back=back) < 2:
                # Between the limit and the nearest there is nothing; a gap of days costs no more than one of ticks.
                times = [t_ns for series in nearest for t_ns in series.fields["joules"]]
                window = (max(times) - width_ns, limit_ns) if back else (limit_ns, min(times) + width_ns)
                _collect(found, self._points.select(ENERGY, *window, own))
                limit_ns, width_ns = window[0 if back else 1], width_ns * _WIDEN
                nearest = self._edge(limit_ns, own, back=back)

    def _edge(self, limit_ns: int, tags: Mapping[str, str], *, back: bool) -> list[Series]:
        beyond = (MIN_NS, limit_ns) if back else (limit_ns, MAX_NS)
        return self._points.edge(ENERGY, "joules", *beyond, tags, last=back)

    def _sessions(self, node: str | None) -> list[Session]:
        return sorted(self._all(SESSIONS, to_session, node), key=lambda s: (s.start_ns, s.node, s.name))

    def _all(self, measurement: str, convert: Callable[..., T], node: str | None) -> list[T]:
        # Clocks and baselines belong to a node, whatever the session.
        tags = self._tags(node) if measurement == SESSIONS else _node_tag(node)
        return [
            convert(series.tags, t_ns, fields)
            for series in self._points.select(measurement, MIN_NS, MAX_NS, tags)
            for t_ns, fields in series.points()
        ]

    def _tags(self, node: str | None) -> dict[str, str]:
        return _node_tag(node) | ({"session": tag_value(self._session)} if self._session is not None else {})

    def _require_influxdb(self) -> None:
        """Raise StoreError for a server that is no InfluxDB, or one older than 1.8."""
        with self._asking():
            _, _, headers = self._client.api_client.call_api(
                "/ping", "GET", _return_http_data_only=False, _preload_content=False
            )
        version = headers.get("X-Influxdb-Version", "")
        if not version:
            raise StoreError(f"{self._settings.url} answers, and is no InfluxDB; expected 1.8, 2.x or 3")
        major, _, rest = str(version).lstrip("v").partition(".")
        minor = rest.partition(".")[0]
        # A server built from source calls itself "dev".
        number = int(major) if major.isdecimal() else 2
        if number < 1 or (number == 1 and minor.isdecimal() and int(minor) < 8):
            raise StoreError(f"{self._settings.url} is InfluxDB {version}; expected 1.8, 2.x or 3")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say what is wrong when the server does not answer as it should."""
        import urllib3
        from influxdb_client.rest import ApiException

        if self._client is None:
            raise StoreError(f"{self._settings} was closed")
        try:
            yield
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(explain(self._settings, error)) from None


def _node_tag(node: str | None) -> dict[str, str]:
    return {} if node is None else {"node": tag_value(node)}


def _key(series: Series) -> Key:
    node, device, domain, source = (tag_text(series.tags[name]) for name in ("node", "device", "domain", "source"))
    return node, device, domain, source


def _collect(found: dict[Key, dict[tuple[int, int, float], _Found]], answer: Iterable[Series]) -> None:
    """Add readings, once each; a tick that two agents share is in both sessions."""
    for series in answer:
        rows = found.setdefault(_key(series), {})
        session = frozenset((series.tags["session"],))
        for t_ns, fields in series.points():
            reading = to_reading(series.tags, t_ns, fields)
            same = (reading.tick_ns, reading.t_ns, reading.joules)
            rows[same] = _Found(reading, rows[same].sessions | session if same in rows else session)


def _beyond(rows: Iterable[_Found], edge_ns: int, *, back: bool) -> int:
    if back:
        return sum(row.reading.tick_ns <= edge_ns and row.reading.t_ns <= edge_ns for row in rows)
    return sum(row.reading.tick_ns >= edge_ns and row.reading.t_ns >= edge_ns for row in rows)


def _needed(rows: Sequence[_Found], start_ns: int, end_ns: int) -> list[_Found]:
    """Return the readings of one series that a window needs: those inside, and two beyond either edge.

    Where no reading lies beyond an edge, every reading on that side is one whose time and tick disagree about it.
    """
    ticks_before = [r.reading.tick_ns for r in rows if r.reading.tick_ns <= start_ns and r.reading.t_ns <= start_ns]
    ticks_after = [r.reading.tick_ns for r in rows if r.reading.tick_ns >= end_ns and r.reading.t_ns >= end_ns]
    first = min(ticks_before[-2:], default=MIN_NS)
    last = max(ticks_after[:2], default=MAX_NS)
    return [row for row in rows if first <= row.reading.tick_ns <= last]


def _refuse_overlap(rows: Iterable[_Found]) -> None:
    """Raise StoreError for a node of which two sessions have readings of their own in turns.

    Agents that write one store in turn may share a tick, which both sessions then have alike; agents with a store
    each do not know of each other.
    """
    spans: dict[str, dict[str, tuple[int, int]]] = {}
    for reading, sessions in rows:
        if len(sessions) == 1:
            (session,) = sessions
            node, tick_ns = reading.node, reading.tick_ns
            first, last = spans.setdefault(node, {}).get(session, (tick_ns, tick_ns))
            spans[node][session] = (min(first, tick_ns), max(last, tick_ns))
    for node, of_node in spans.items():
        ordered = sorted(of_node.items(), key=lambda item: item[1])
        for (one, (_, one_last)), (other, (other_first, _)) in pairwise(ordered):
            if other_first < one_last:
                raise StoreError(
                    f"two agents wrote node {node!r} at the same time, sessions {tag_text(one)} and "
                    f"{tag_text(other)}: their counters are two for the same joules; name one of the sessions, "
                    "and give every agent a --node of its own"
                )
