"""A window's energy straight from a store: by node, component and series, gross and net, with its error bound."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from energymon.baseline import NetEnergy, baseline_of, baselines_at
from energymon.baseline import net as net_of
from energymon.clock import NS
from energymon.components import Channels, Component, add_up, best_sources, channels_of, components
from energymon.integrate import Energy, Integral, missed_share, require_order
from energymon.offsets import Offset, offset_at
from energymon.reading import LAG_S, Baseline, Event, Reading, Tick
from energymon.render import render
from energymon.stores.base import Session, Store
from energymon.stretches import known_nodes, lives, spans

__all__ = ["WindowEnergy", "query", "render", "to_json", "total"]


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """What one node used in a window, and how well that is known."""

    node: str
    start_ns: int
    """UTC ns, as asked for."""
    end_ns: int
    """UTC ns, as asked for."""
    energies: tuple[Energy, ...]
    """Every series that covers the window; several may tell the same joules."""
    missed_share: float
    """Share of ticks that lack a reading, 0 to 1."""
    events: tuple[Event, ...]
    """What the agent told in the window, after the parts of the host that it could not read from its start."""
    best: tuple[Energy, ...] = ()
    """The most direct series of every device."""
    components: tuple[Component, ...] = ()
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

    def to_json(self) -> dict[str, object]:
        """Return the same as JSON types."""
        return asdict(self)


def query(
    store: Store,
    start_ns: int,
    end_ns: int,
    node: str | Collection[str] | None = None,
    *,
    net: bool = False,
    baseline: tuple[int, int] | None = None,
    clock: Literal["own", "controller"] = "controller",
) -> list[WindowEnergy]:
    """Return the energy in [start, end], UTC ns, of one node, of several, or of every node in the store.

    With `net` the idle baseline recorded last before the window is subtracted, or with `baseline` the mean power in
    that span, UTC ns. The instants are the controller's and are moved into each node's clock by the offset that the
    node stored; a node that stored none is taken to have the same clock, and says so. With clock="own" they are each
    node's own. Raises StoreError, and WindowError for a node that is not in the store and a span that ends before
    it starts.
    """
    require_order(start_ns, end_ns)
    sessions = store.sessions()
    nodes = known_nodes(sessions, node)
    found = []
    for name in nodes:
        session = _session(sessions, name, end_ns)
        if session is None:
            continue
        offsets = None if clock == "own" else _offsets(store, name, (start_ns, end_ns))
        asked = _Node(store, session, channels_of(session), offsets, alone=clock == "own" or len(nodes) == 1)
        found.append(asked.window(start_ns, end_ns, _baselines(asked, baseline, start_ns) if net or baseline else None))
    return found


def total(windows: Sequence[WindowEnergy]) -> Component | None:
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
class _Node:
    """One node of the store, seen through its clock."""

    store: Store
    session: Session
    channels: Channels
    offsets: tuple[Offset, Offset] | None
    """At the start and at the end of the window, where the window is in the controller's time."""
    alone: bool

    @property
    def clock_error_ns(self) -> int:
        return max(offset.error_ns for offset in self.offsets) if self.offsets else 0

    def own(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return a window in the node's own time, UTC ns."""
        if self.offsets is None:
            return start_ns, end_ns
        return self.offsets[0].to_node(start_ns), self.offsets[1].to_node(end_ns)

    def window(self, start_ns: int, end_ns: int, baselines: Sequence[Baseline] | None) -> WindowEnergy:
        own_start_ns, own_end_ns = self.own(start_ns, end_ns)
        energies = self._energies(own_start_ns, own_end_ns)
        best = best_sources(energies)
        nets = net_of(best, baselines, (own_end_ns - own_start_ns) / NS) if baselines is not None else []
        name, interval_ns = self.session.node, self.session.interval_ns
        return WindowEnergy(
            name,
            start_ns,
            end_ns,
            tuple(energies),
            missed_share(self._ticks(own_start_ns, own_end_ns), own_start_ns, own_end_ns, interval_ns),
            (*self._unreadable(start_ns), *self._events(own_start_ns, own_end_ns)),
            tuple(best),
            tuple(components(best, self.channels, nets)),
            tuple(nets),
            "controller" if self.offsets else "own" if self.alone else "unknown",
            self.offsets[0].offset_ns if self.offsets else 0,
            self.clock_error_ns if self.offsets or self.alone else None,
        )

    def _unreadable(self, t_ns: int) -> Iterator[Event]:
        for (device, domain), reason in self.channels.unreadable.items():
            message = f"{device} {domain} was found and cannot be read; {domain} and the total are unknown: {reason}"
            message += "; --sensors measures what it names alone"
            yield Event(t_ns, self.session.node, "part-unreadable", message)

    def _events(self, start_ns: int, end_ns: int) -> list[Event]:
        return [event for event in self.store.events(start_ns, end_ns) if event.node == self.session.node]

    def readings(self, start_ns: int, end_ns: int) -> list[Reading]:
        """Return the readings of a stretch, and as many around it as the bound of the error looks at."""
        known = self.channels.lags
        lag_s = max(known.values(), default=max(LAG_S.values()))
        # A value may be as old as the lag, and is known to be no older where the reading before it showed another.
        margin_ns = 2 * round(lag_s * NS) + 2 * self.session.interval_ns + self.clock_error_ns
        return self.store.readings(start_ns - margin_ns, end_ns + margin_ns, self.session.node)

    def baselines(self, start_ns: int, end_ns: int) -> list[Baseline]:
        return baseline_of(
            self.readings(start_ns, end_ns),
            start_ns,
            end_ns,
            self.session.interval_ns,
            clock_error_ns=self.clock_error_ns,
            lags=self.channels.lags,
        )

    def _energies(self, start_ns: int, end_ns: int) -> list[Energy]:
        integral = Integral(
            start_ns,
            interval_ns=self.session.interval_ns,
            clock_error_ns=self.clock_error_ns,
            lags=self.channels.lags,
        )
        for begin, stop in spans(start_ns, end_ns, self.session.interval_ns):
            integral.add(self.readings(begin, stop), stop)
            if integral.lost:
                break
        return integral.energies()

    def _ticks(self, start_ns: int, end_ns: int) -> Iterator[Tick]:
        """Yield the ticks that may be whole: none lies outside the agents' lives."""
        for session, first_ns, last_ns in lives(self.store, start_ns, end_ns, self.session.node):
            for begin, stop in spans(first_ns, last_ns, session.interval_ns):
                yield from self.store.ticks(begin, stop, self.session.node)


def _session(sessions: Sequence[Session], node: str, end_ns: int) -> Session | None:
    """Return the agent's life that the window lies in: the last to begin before its end."""
    return max((s for s in sessions if s.node == node and s.start_ns <= end_ns), key=lambda s: s.start_ns, default=None)


def _offsets(store: Store, node: str, instants_ns: tuple[int, int]) -> tuple[Offset, Offset] | None:
    clocks = store.clocks(node)
    start, end = (offset_at(clocks, at_ns) for at_ns in instants_ns)
    return (start, end) if start is not None and end is not None else None


def _baselines(node: _Node, span: tuple[int, int] | None, start_ns: int) -> list[Baseline]:
    if span is None:
        return baselines_at(node.store.baselines(node.session.node), node.own(start_ns, start_ns)[0])
    require_order(*span)
    return node.baselines(*node.own(*span))
