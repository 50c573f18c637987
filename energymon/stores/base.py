"""What a store of readings answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from energymon.reading import Baseline, ClockOffset, CounterStart, Event, Reading, Ticks


@dataclass(frozen=True, slots=True)
class Session:
    """A run of an agent, from its start to its end."""

    name: str
    """Unique on its node: UTC ns of the start and the agent's process id."""
    node: str
    start_ns: int
    """UTC ns."""
    end_ns: int | None
    """UTC ns; None when the agent runs or was killed."""
    interval_ns: int
    cpu_s: float | None
    """CPU time that the agent itself took, s; None when it was killed."""
    description: Mapping[str, object]
    """Sensors, what is missing, priority and host."""


class Store(Protocol):
    """A store open for reading; every method raises StoreError when it cannot answer."""

    def readings(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Reading]:
        """Return the readings in [start, end], UTC ns, and two more of each series on either side.

        Ordered by series, then tick.
        """
        ...

    def ticks(self, start_ns: int, end_ns: int, node: str | None = None) -> list[Ticks]:
        """Return the ticks in [start, end), UTC ns, by node and time, and what follows or precedes them unbroken."""
        ...

    def flagged(self, start_ns: int, end_ns: int, node: str) -> list[int]:
        """Return the ticks in [start, end], UTC ns, of all readings that have a flag, in order."""
        ...

    def events(self, start_ns: int = 0, end_ns: int = 2**63 - 1) -> list[Event]:
        """Return the events in [start, end), UTC ns, by time."""
        ...

    def sessions(self) -> list[Session]:
        """Return the sessions of all agents in the order of their starts."""
        ...

    def clocks(self, node: str | None = None) -> list[ClockOffset]:
        """Return every clock offset measured, by time."""
        ...

    def baselines(self, node: str | None = None) -> list[Baseline]:
        """Return every idle baseline recorded, by time and series."""
        ...

    def counters(self, node: str | None = None) -> list[CounterStart]:
        """Return every counter that a series began with, by time and series."""
        ...

    def close(self) -> None:
        """Release what the store holds; may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
