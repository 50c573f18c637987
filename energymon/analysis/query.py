"""A window's energy straight from a store: by node, component and series, gross and net, with its error bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, Literal

from energymon.analysis.attribution import Channels, EnergyComponent, Part, add_up, channels_of, energy_of
from energymon.analysis.baseline import NetEnergy, baseline_of, baselines_at
from energymon.analysis.integrate import Energy, missed_share, require_order
from energymon.analysis.restarts import bridged, restarts
from energymon.analysis.sessions import covered, known_nodes, parts
from energymon.clock.monotonic import NS, utc_text
from energymon.clock.offsets import Offset, WallInstant, at_wall, offset_at, wall_at
from energymon.errors import WindowError
from energymon.reading import LAG_S, Baseline, ClockOffset, CounterStart, Event, Reading, Session
from energymon.store import SqliteStore

_MOST_CUTS: Final = 20
_BY_SERIES: Final = attrgetter("device", "domain", "source", "tick_ns")


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """What one node used in a window, and how well that is known."""

    node: str
    start_ns: int
    """UTC ns, as asked for."""
    end_ns: int
    """UTC ns, as asked for."""
    energies: tuple[Energy, ...]
    """Every series that covers the window; several may count the same joules."""
    missed_share: float
    """Share of ticks that lack a reading, 0 to 1."""
    events: tuple[Event, ...]
    """The agent's events in the window, after the parts of the host that it could not read from its start."""
    best: tuple[Energy, ...] = ()
    """The most direct series of every device."""
    components: tuple[EnergyComponent, ...] = ()
    """`best` by domain, and in total."""
    net: tuple[NetEnergy, ...] = ()
    """`best` net of the idle baseline, where that was asked for."""
    clock: Literal["own", "controller", "unknown"] = "own"
    """Whose time the window is in: the node's own, or the controller's by the offset stored; unknown where several
    nodes are asked and this one has no offset stored."""
    offset_ns: int = 0
    """The controller's clock minus the node's at the start, ns."""
    clock_error_ns: int | None = 0
    """Bound of the error of the offset at either edge, ns; None when unknown."""

    covered: tuple[tuple[int, int], ...] = ()
    """Of a window without a figure of everything: the parts between readings of an agent, UTC ns as asked for."""

    def to_json(self) -> dict[str, object]:
        """Return the same as JSON types."""
        return asdict(self)


def query(
    store: SqliteStore,
    start_ns: int,
    end_ns: int,
    node: str | Collection[str] | None = None,
    *,
    net: bool = False,
    baseline: tuple[int, int] | None = None,
    clock: Literal["own", "controller", "readings"] = "controller",
) -> list[WindowEnergy]:
    """Return the energy in [start, end], UTC ns, of one node, of several, or of every node in the store.

    With `net` the idle baseline recorded last before the window is subtracted, or with `baseline` the mean power in
    that span, UTC ns. The instants are the controller's and are moved into each node's clock by the offset that the
    node stored; a node that stored none is taken to have the same clock, and says so. With clock="own" they are each
    node's own wall clock's, and with clock="readings" those of its readings, which nobody sets. A window with an edge
    at an instant that was more than once, for the wall clock was set back, has no figure. Raises StoreError, and
    WindowError for a node that is not in the store and a span that ends before it starts.
    """
    require_order(start_ns, end_ns)
    sessions = store.sessions()
    nodes = known_nodes(sessions, node)
    found = []
    for name in nodes:
        clocks = store.clocks(name)
        since_ns = min(s.start_ns for s in sessions if s.node == name)
        window_clock = _WindowClock(
            clocks, since_ns, clock, _offsets(clocks, (start_ns, end_ns)) if clock == "controller" else None
        )
        session = _session(sessions, name, window_clock.own(start_ns, end_ns)[1].t_ns)
        if session is None:
            continue
        alone = clock != "controller" or len(nodes) == 1
        own = [s for s in sessions if s.node == name]
        asked = _NodeQuery(
            store, session, channels_of(session.description, name), window_clock, alone, own, store.counters(name)
        )
        found.append(asked.window(start_ns, end_ns, _baselines(asked, baseline, start_ns) if net or baseline else None))
    return found


def total(windows: Sequence[WindowEnergy]) -> EnergyComponent | None:
    """Return the energy of all nodes together; None when there are none, unknown when one of them is."""
    totals = [component for window in windows for component in window.components if component.name == "total"]
    return add_up(totals) if totals and len(totals) == len(windows) else None


def to_json(windows: Sequence[WindowEnergy]) -> dict[str, object]:
    """Return windows and their total as JSON types."""
    together = total(windows)
    return {
        "windows": [window.to_json() for window in windows],
        "total": None if together is None else asdict(together),
    }


@dataclass(frozen=True, slots=True)
class _WindowClock:
    """The clock that a window is given in, and a node's own clock."""

    clocks: Sequence[ClockOffset]
    since_ns: int
    """When the node's first agent began, UTC ns."""
    clock: Literal["own", "controller", "readings"]
    offsets: tuple[Offset, Offset] | None
    """The controller's at the start and at the end of the window, where the window is in the controller's time."""

    def own(self, start_ns: int, end_ns: int) -> tuple[WallInstant, WallInstant]:
        """Return a window by the clock of the node's readings."""
        if self.offsets is not None:
            return WallInstant(self.offsets[0].to_node(start_ns)), WallInstant(self.offsets[1].to_node(end_ns))
        if self.clock == "readings":
            return WallInstant(start_ns), WallInstant(end_ns)
        return at_wall(self.clocks, start_ns, self.since_ns), at_wall(self.clocks, end_ns, self.since_ns)

    def at(self, own_ns: int) -> int:
        """Return an instant of the readings' clock by the clock that the window is given in, UTC ns."""
        if self.offsets is not None:
            return own_ns + self.offsets[0].offset_ns
        return own_ns if self.clock == "readings" else wall_at(self.clocks, own_ns)

    def shown(self, event: Event) -> Event:
        """Return an event with its time by the wall clock, where the window is given in that."""
        if self.offsets is not None:
            return event
        return replace(event, t_ns=wall_at(self.clocks, event.t_ns))


@dataclass(frozen=True, slots=True)
class _NodeQuery:
    """One node of the store, seen through its clock."""

    store: SqliteStore
    session: Session
    channels: Channels
    window_clock: _WindowClock
    alone: bool
    sessions: Sequence[Session]
    counters: Sequence[CounterStart]

    @property
    def clock_error_ns(self) -> int:
        return max(offset.error_ns for offset in self.window_clock.offsets) if self.window_clock.offsets else 0

    def window(self, start_ns: int, end_ns: int, baselines: Sequence[Baseline] | None) -> WindowEnergy:
        start, end = self.window_clock.own(start_ns, end_ns)
        own_start_ns, own_end_ns = start.t_ns, max(start.t_ns, end.t_ns)
        torn = start.times > 1 or end.times > 1 or end.t_ns < start.t_ns
        # An edge that the wall clock showed twice gives no figure.
        found = energy_of(
            [] if torn else self._parts,
            self.channels,
            own_start_ns,
            own_end_ns,
            self.session.interval_ns,
            clock_error_ns=self.clock_error_ns,
            baselines=baselines,
        )
        whole = found.total is not None and found.total.joules is not None
        covered_parts = [] if whole or torn else self._covered(own_start_ns, own_end_ns)
        name, interval_ns = self.session.node, self.session.interval_ns
        return WindowEnergy(
            name,
            start_ns,
            end_ns,
            found.energies,
            missed_share(self.store.ticks(own_start_ns, own_end_ns, name), own_start_ns, own_end_ns, interval_ns),
            (
                *self._unreadable(start_ns),
                *self._clock_events((start_ns, start), (end_ns, end)),
                *self._restarts(own_start_ns, own_end_ns),
                *self._events(own_start_ns, own_end_ns),
            ),
            found.best,
            found.components,
            found.net,
            "controller" if self.window_clock.offsets else "own" if self.alone else "unknown",
            self.window_clock.offsets[0].offset_ns if self.window_clock.offsets else 0,
            self.clock_error_ns if self.window_clock.offsets or self.alone else None,
            tuple((self.window_clock.at(begin), self.window_clock.at(stop)) for begin, stop in covered_parts),
        )

    def _covered(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return the parts of a window that readings cover, cut where a counter started again."""
        events = self.store.events(start_ns, end_ns)
        cuts = sorted({e.t_ns for e in events if e.kind == "counter-restart" and e.node == self.session.node})[
            :_MOST_CUTS
        ]
        edges = [start_ns, *cuts, end_ns]
        return [
            part
            for begin, stop in pairwise(edges)
            for part in covered(self.store, begin, stop if stop == end_ns else stop - 1, self.session.node)
        ]

    def _unreadable(self, t_ns: int) -> Iterator[Event]:
        for (device, domain), reason in self.channels.unreadable.items():
            message = f"{device} {domain} was found and cannot be read; {domain} and the total are unknown: {reason}"
            message += "; --sensors measures what it names alone"
            yield Event(t_ns, self.session.node, "part-unreadable", message)

    def _clock_events(self, *edges: tuple[int, WallInstant]) -> Iterator[Event]:
        for t_ns, instant in edges:
            if instant.times == 1:
                continue
            message = f"{self.session.node}'s wall clock showed {utc_text(t_ns)} "
            if instant.times:
                message += f"{instant.times} times, for it was set back: the window is unknown; ask for other instants"
            else:
                message += "never, for it was set ahead over it: this edge of the window is where it was set"
            yield Event(t_ns, self.session.node, "clock-ambiguous" if instant.times else "clock-step", message)

    def _restarts(self, start_ns: int, end_ns: int) -> list[Event]:
        found: list[Event] = []
        for session in self.sessions:
            if start_ns < session.start_ns <= end_ns:
                around = self.store.readings(session.start_ns, session.start_ns, session.node)
                for event in restarts(around, self.counters, self.sessions):
                    # Around there may be more restarts, of sessions of their own.
                    if start_ns < event.t_ns <= end_ns and event not in found:
                        found.append(event)
        return [self.window_clock.shown(event) for event in found]

    def _events(self, start_ns: int, end_ns: int) -> list[Event]:
        return [
            self.window_clock.shown(event)
            for event in self.store.events(start_ns, end_ns)
            if event.node == self.session.node
        ]

    def _parts(self, start_ns: int, end_ns: int) -> Iterator[Part]:
        """Yield a window in parts, with the readings that the joules and the bound of the error need."""
        ticks = self.store.ticks(start_ns, end_ns, self.session.node)
        flagged = self.store.flagged(start_ns, end_ns, self.session.node)
        before: list[Reading] = []
        hole: tuple[int, int] | None = None
        for begin, stop, plain in parts(ticks, flagged, start_ns, end_ns, self.session.interval_ns):
            if plain:
                hole = begin, stop
                continue
            found = around = self._readings(begin, stop)
            if hole is not None:
                # The parts on either side have the readings around its ends.
                last_ns = max((r.tick_ns for r in before), default=0)
                around = sorted([*before, *(r for r in found if r.tick_ns > last_ns)], key=_BY_SERIES)
            yield stop, bridged(around, self.counters, self.sessions), hole
            before, hole = found, None

    def _readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings of a part, and as many around it as the bound of the error looks at."""
        known = self.channels.lags
        lag_s = max(known.values(), default=max(LAG_S.values()))
        # A value may be as old as the lag, and is known to be no older where the reading before it showed another.
        margin_ns = 2 * round(lag_s * NS) + 2 * self.session.interval_ns + self.clock_error_ns
        return self.store.readings(start_ns - margin_ns, end_ns + margin_ns, self.session.node)

    def baselines(self, start_ns: int, end_ns: int) -> list[Baseline]:
        return baseline_of(
            bridged(self._readings(start_ns, end_ns), self.counters, self.sessions),
            start_ns,
            end_ns,
            self.session.interval_ns,
            clock_error_ns=self.clock_error_ns,
            lags=self.channels.lags,
        )


def _session(sessions: Sequence[Session], node: str, end_ns: int) -> Session | None:
    """Return the session that the window lies in: the last one that starts before its end."""
    return max((s for s in sessions if s.node == node and s.start_ns <= end_ns), key=lambda s: s.start_ns, default=None)


def _offsets(clocks: Sequence[ClockOffset], instants_ns: tuple[int, int]) -> tuple[Offset, Offset] | None:
    start, end = (offset_at(clocks, at_ns) for at_ns in instants_ns)
    return (start, end) if start is not None and end is not None else None


def _baselines(node: _NodeQuery, span: tuple[int, int] | None, start_ns: int) -> list[Baseline]:
    if span is None:
        return baselines_at(node.store.baselines(node.session.node), node.window_clock.own(start_ns, start_ns)[0].t_ns)
    require_order(*span)
    start, end = node.window_clock.own(*span)
    if start.times > 1 or end.times > 1:
        raise WindowError(
            f"the idle span begins or ends at an instant that {node.session.node}'s wall clock showed twice"
        )
    return node.baselines(start.t_ns, end.t_ns)
