"""A window's energy straight from a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from energymon.reading import Event
from energymon.stores.sqlite import SqliteStore
from energymon.window import Energy, joules, missed_share, require_order

__all__ = ["WindowEnergy", "query"]


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """What one node used in a window, and how well that is known."""

    node: str
    start_ns: int
    """UTC ns."""
    end_ns: int
    """UTC ns."""
    energies: tuple[Energy, ...]
    missed_share: float
    """Share of ticks that lack a reading, 0 to 1."""
    events: tuple[Event, ...]
    """What the agent told in the window."""

    def to_json(self) -> dict[str, object]:
        """Return the same as JSON types."""
        return asdict(self)


def query(store: SqliteStore, start_ns: int, end_ns: int, node: str | None = None) -> list[WindowEnergy]:
    """Return the energy of every node in the store, or of `node` alone, in [start, end], UTC ns.

    Raises StoreError and WindowError.
    """
    require_order(start_ns, end_ns)
    intervals = {s.node: s.interval_ns for s in store.sessions() if s.start_ns <= end_ns}
    readings = store.readings(start_ns, end_ns, node)
    ticks = store.ticks(start_ns, end_ns, node)
    events = store.events(start_ns, end_ns)
    return [
        WindowEnergy(
            name,
            start_ns,
            end_ns,
            tuple(joules((r for r in readings if r.node == name), start_ns, end_ns, interval_ns)),
            missed_share((t for t in ticks if t.node == name), start_ns, end_ns, interval_ns),
            tuple(e for e in events if e.node == name),
        )
        for name, interval_ns in sorted(intervals.items())
        if node is None or name == node
    ]
