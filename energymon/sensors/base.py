"""What a sensor is: a few channels that one thread reads together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from energymon.clock import Clock
from energymon.reading import Domain

__all__ = ["Channel", "Discovery", "Missing", "Point", "Sensor"]


@dataclass(frozen=True, slots=True)
class Channel:
    """One series of a sensor, before it has a node."""

    device: str
    domain: Domain
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """One channel's answer at one tick."""

    channel: Channel
    t_ns: int
    """When it was read, UTC ns."""
    joules: float | None
    """Cumulative joules; None when the channel could not be read."""
    flags: str = ""
    problem: str = ""
    """Why joules is None."""


class Sensor(Protocol):
    """Reads its channels; one call at a time."""

    @property
    def name(self) -> str:
        """The sensor's name."""
        ...

    @property
    def channels(self) -> Sequence[Channel]:
        """What it reads."""
        ...

    def read(self, clock: Clock) -> list[Point]:
        """Read every channel once; a channel that fails is a Point with a problem, never an exception."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what a reader of the results should know of this sensor, JSON types only."""
        ...

    def close(self) -> None:
        """Release descriptors and libraries; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    """A sensor, or a channel of one, that this host does not offer."""

    sensor: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sensor}: {self.reason}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What one kind of sensor came to: the sensor, if any, and what is missing of it."""

    sensor: Sensor | None
    missing: tuple[Missing, ...] = ()
