"""A window's energy straight from a store: by node, component and series, gross and net, with its error bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal

from energymon.analysis.attribution import Channels, EnergyComponent, NodeEnergy, Part, add_up, channels_of, energy_of
from energymon.analysis.curve import SERIES
from energymon.analysis.integrate import baselines_at, missed_share, require_order
from energymon.analysis.restarts import bridged, restarts
from energymon.analysis.sessions import covered, known_nodes, parts
from energymon.clock.monotonic import NS, utc_text
from energymon.clock.offsets import CONTROLLER, WALL, WallInstant, at_wall, offset_at, wall_at
from energymon.reading import LAG_S, Event, Reading, Session
from energymon.store import SqliteStore

_MOST_CUTS: Final = 20
_J_PER_KWH: Final = 3.6e6
NO_AMOUNTS: Final[Mapping[str, float]] = MappingProxyType({})
_BY_SERIES: Final = attrgetter("device", "domain", "source", "tick_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEnergy(NodeEnergy):
    """What one node used in a window, and how well that is known."""

    node: str
    start_ns: int
    """UTC ns, as asked for."""
    end_ns: int
    """UTC ns, as asked for."""
    missed_share: float
    """Share of ticks that lack a reading, 0 to 1."""
    events: tuple[Event, ...]
    """The agent's events in the window, after the parts of the host that it could not read from its start."""
    is_net: bool = False
    """Whether idle and net joules were asked for."""
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
        return {**asdict(self), "events": [event._asdict() for event in self.events]}


def query(
    store: SqliteStore,
    start_ns: int,
    end_ns: int,
    node: str | Collection[str] | None = None,
    *,
    net: bool = False,
    clock: Literal["own", "controller", "readings"] = "controller",
    period_s: float | None = None,
) -> list[WindowEnergy]:
    """Return the energy in [start, end], UTC ns, of one node, of several, or of every node in the store.

    With `net` the idle baseline recorded last before the window is subtracted. `clock` is whose time the instants are:
    the controller's, by the offset that each node stored, 0 without one; each node's own wall clock's; or its
    readings', which nobody sets. An edge that the wall clock showed twice gives no figure. With `period_s`, after which
    the load repeats, s, an event says where a part-time sensor may see it at one phase alone. Raises StoreError, and
    WindowError for a node that is not in the store and a span that ends before it starts.
    """
    require_order(start_ns, end_ns)
    sessions = store.sessions()
    nodes = known_nodes(sessions, node)
    found = []
    for name in nodes:
        own = [session for session in sessions if session.node == name]
        asked = _NodeQuery(store, own, (start_ns, end_ns), clock, is_alone=len(nodes) == 1)
        if asked.began:
            found.append(with_resonances(asked.window(net=net), asked.channels, period_s))
    return found


def with_resonances(window: WindowEnergy, channels: Channels, period_s: float | None) -> WindowEnergy:
    """Return a window with an event for each sensor that may see a load that repeats at one phase alone."""
    if period_s is None:
        return window
    events = list(window.events)
    for e in window.best:
        known = channels.accuracies.get(SERIES(e))
        if known and (how := known.resonance(period_s, (window.end_ns - window.start_ns) / NS)):
            events.append(Event(window.start_ns, e.node, "load-resonates", f"{e.device} {e.source} {how}"))
    return replace(window, events=tuple(events))


def total(windows: Sequence[WindowEnergy]) -> EnergyComponent | None:
    """Return the energy of all nodes together; None when there are none, unknown when one of them is."""
    totals = [component for window in windows for component in window.components if component.name == "total"]
    return add_up(totals) if totals and len(totals) == len(windows) else None


def to_json(windows: Sequence[WindowEnergy], amounts: Mapping[str, float] = NO_AMOUNTS) -> dict[str, object]:
    """Return windows and their total as JSON types, with amounts at so much a kilowatt-hour of each sum, by name."""

    def priced(component: EnergyComponent) -> dict[str, object]:
        return {**asdict(component), **{name: amount_of(component.joules, amounts[name]) for name in amounts}}

    together = total(windows)
    return {
        "windows": [{**window.to_json(), "components": [*map(priced, window.components)]} for window in windows],
        "total": None if together is None else priced(together),
    }


def amount_of(joules: float | None, per_kwh: float) -> float | None:
    """Return what joules cost, or the grams of CO2 of them, at so much a kilowatt-hour; None where they are unknown."""
    return None if joules is None else joules * per_kwh / _J_PER_KWH


def standing_events(description: Mapping[str, Any], t_ns: int, node: str) -> Iterator[Event]:
    """Yield what holds for every window of an agent, as events at `t_ns`: parts that it cannot read, boards."""
    for (device, domain), reason in channels_of(description, node).unreadable.items():
        message = f"{device} {domain} was found and cannot be read; {domain} and the total are unknown: {reason}"
        yield Event(t_ns, node, "part-unreadable", f"{message}; --sensors measures what it names alone")
    for sensor in description.get("sensors") or ():
        if sensor.get("slices") is not None:
            message = f"{sensor['channels'][0]['device']}: whole board in MIG mode, with all its slices"
            yield Event(t_ns, node, "mig", message)
    if boards := description.get("boards"):
        yield Event(t_ns, node, "boards", str(boards))


class _NodeQuery:
    """One node of the store, and a window seen through its clock."""

    def __init__(
        self, store: SqliteStore, sessions: Sequence[Session], window_ns: tuple[int, int], clock: str, *, is_alone: bool
    ) -> None:
        """Take the node's sessions, a window, UTC ns of `clock`, and whether no other node is asked."""
        self._store, self._sessions, self._window_ns, self._clock = store, sessions, window_ns, clock
        self._node = sessions[0].node
        peers = (CONTROLLER, WALL) if clock == "controller" else (WALL,)
        self._clocks, self._counters = store.clocks(self._node, peers), store.counters(self._node)
        offsets = [offset_at(self._clocks, at_ns) for at_ns in window_ns] if clock == "controller" else []
        # Those of the controller at both edges, where the node has measured any.
        self._offsets = [offset for offset in offsets if offset is not None]
        self._clock_error_ns = max((offset.error_ns for offset in self._offsets), default=0)
        self._is_known = bool(self._offsets) or is_alone or clock != "controller"
        self._start, self._end = self._own(*window_ns)
        before = [session for session in sessions if session.start_ns <= self._end.t_ns]
        self.began = bool(before)
        """Whether an agent of the node had started before the end of the window."""
        self._session = max(before or sessions, key=lambda session: session.start_ns)
        self.channels = channels_of(self._session.description, self._node)

    def _own(self, start_ns: int, end_ns: int) -> tuple[WallInstant, WallInstant]:
        """Return a span of the window's clock by the clock of the node's readings."""
        if self._offsets:
            return WallInstant(self._offsets[0].to_node(start_ns)), WallInstant(self._offsets[1].to_node(end_ns))
        if self._clock == "readings":
            return WallInstant(start_ns), WallInstant(end_ns)
        since_ns = min(session.start_ns for session in self._sessions)
        return at_wall(self._clocks, start_ns, since_ns), at_wall(self._clocks, end_ns, since_ns)

    def _at(self, own_ns: int) -> int:
        """Return an instant of the readings' clock by the clock that the window is given in, UTC ns."""
        if self._offsets:
            return own_ns + self._offsets[0].offset_ns
        return own_ns if self._clock == "readings" else wall_at(self._clocks, own_ns)

    def _shown(self, event: Event) -> Event:
        """Return an event with its time by the wall clock, where the window is not given in the controller's."""
        return event if self._offsets else event._replace(t_ns=wall_at(self._clocks, event.t_ns))

    def window(self, *, net: bool) -> WindowEnergy:
        """Return the energy of the window, net of the node's idle baseline where that is asked for."""
        idle = baselines_at(self._store.baselines(self._node), self._start.t_ns) if net else None
        start, end, error_ns = self._start, self._end, self._clock_error_ns
        start_ns, end_ns, interval_ns = start.t_ns, max(start.t_ns, end.t_ns), self._session.interval_ns
        # An edge that the wall clock showed twice gives no figure.
        torn = start.times > 1 or end.times > 1 or end.t_ns < start.t_ns
        span = start_ns, end_ns, interval_ns
        found = energy_of([] if torn else self._parts, self.channels, *span, clock_error_ns=error_ns, baselines=idle)
        whole = found.total is not None and found.total.joules is not None
        covered_parts = [] if whole or torn else self._covered(start_ns, end_ns)
        return WindowEnergy(
            *(found.energies, found.best, found.components, found.disagreements),
            node=self._node,
            start_ns=self._window_ns[0],
            end_ns=self._window_ns[1],
            missed_share=missed_share(self._store.ticks(start_ns, end_ns, self._node), start_ns, end_ns, interval_ns),
            events=(
                *standing_events(self._session.description, self._window_ns[0], self._node),
                *self._clock_events(),
                *self._restarts(start_ns, end_ns),
                *(self._shown(e) for e in self._store.events(start_ns, end_ns) if e.node == self._node),
            ),
            is_net=net,
            clock="controller" if self._offsets else "own" if self._is_known else "unknown",
            offset_ns=self._offsets[0].offset_ns if self._offsets else 0,
            clock_error_ns=error_ns if self._is_known else None,
            covered=tuple((self._at(begin), self._at(stop)) for begin, stop in covered_parts),
        )

    def _covered(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return the parts of a window that readings cover, cut where a counter started again."""
        events = self._store.events(start_ns, end_ns)
        cuts = sorted({e.t_ns for e in events if e.kind == "counter-restart" and e.node == self._node})[:_MOST_CUTS]
        return [
            part
            for begin, stop in pairwise([start_ns, *cuts, end_ns])
            for part in covered(self._store, begin, stop if stop == end_ns else stop - 1, self._node)
        ]

    def _clock_events(self) -> Iterator[Event]:
        for t_ns, instant in zip(self._window_ns, (self._start, self._end), strict=True):
            if instant.times == 1:
                continue
            message = f"{self._node}'s wall clock showed {utc_text(t_ns)} "
            if instant.times:
                message += f"{instant.times} times, for it was set back: the window is unknown; ask for other instants"
            else:
                message += "never, for it was set ahead over it: this edge of the window is where it was set"
            yield Event(t_ns, self._node, "clock-ambiguous" if instant.times else "clock-step", message)

    def _restarts(self, start_ns: int, end_ns: int) -> list[Event]:
        found: list[Event] = []
        for session in self._sessions:
            if start_ns < session.start_ns <= end_ns:
                around = self._store.readings(session.start_ns, session.start_ns, session.node)
                for event in restarts(around, self._counters, self._sessions):
                    # Around there may be more restarts, of sessions of their own.
                    if start_ns < event.t_ns <= end_ns and event not in found:
                        found.append(event)
        return [self._shown(event) for event in found]

    def _parts(self, start_ns: int, end_ns: int) -> Iterator[Part]:
        """Yield a window in parts, with the readings that the joules and the bound of the error need."""
        ticks = self._store.ticks(start_ns, end_ns, self._node)
        flagged = self._store.flagged(start_ns, end_ns, self._node)
        before: list[Reading] = []
        hole: tuple[int, int] | None = None
        for begin, stop, plain in parts(ticks, flagged, start_ns, end_ns, self._session.interval_ns):
            if plain:
                hole = begin, stop
                continue
            found = around = self._readings(begin, stop)
            if hole is not None:
                # The parts on either side have the readings around its ends.
                last_ns = max((r.tick_ns for r in before), default=0)
                around = sorted([*before, *(r for r in found if r.tick_ns > last_ns)], key=_BY_SERIES)
            yield stop, bridged(around, self._counters, self._sessions), hole
            before, hole = found, None

    def _readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings of a part, and as many around it as the bound of the error looks at."""
        known = self.channels.lags
        lag_s = max(known.values(), default=max(LAG_S.values()))
        # A value may be as old as the lag, and is known to be no older where the reading before it showed another.
        margin_ns = 2 * round(lag_s * NS) + 2 * self._session.interval_ns + self._clock_error_ns
        return self._store.readings(start_ns - margin_ns, end_ns + margin_ns, self._node)
