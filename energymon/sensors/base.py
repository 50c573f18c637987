"""What a sensor is: a few channels that one thread reads together."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from energymon.clock.monotonic import NS
from energymon.errors import NoSensorError
from energymon.reading import ESTIMATE, Domain

if TYPE_CHECKING:
    from energymon.sensors.boards import Board
    from energymon.sensors.counter import DeviceSeries

CLOSED: Final = -1
"""Stands for a descriptor that is closed."""
Part = tuple[str, Domain]
"""A device and the domain whose joules are the sum over such devices."""
Raw: TypeAlias = "list[Any]"
"""Answers between monotonic times, ns: [t, answer, t, …, t]. An answer is bytes, a return code, or an OSError."""


class Operation(NamedTuple):
    """One answer that compiled code gets: bytes of a file, or what a function leaves in a buffer."""

    size: int
    """Bytes of the answer at most."""
    fd: int = -1
    """Of the file, when it is one."""
    seeks: bool = False
    """Whether the file is read from its start each time."""
    function: int = 0
    """Address of a function (handle, buffer), or (handle, length, buffer), that returns 0 when it has succeeded."""
    handle: int = 0
    length: int | None = None
    buffer: int = 0
    """Address of the function's answer."""


class SensorChannel(NamedTuple):
    """One series of a sensor, before it has a node."""

    device: str
    domain: Domain
    source: str


class RawCounter(NamedTuple):
    """What a hardware counter showed; its fields are those of a CounterStart."""

    raw: int
    unit_j: float
    wrap: int | None
    max_w: float
    counter: str


class SensorPoint(NamedTuple):
    """One channel's answer at one tick."""

    channel: SensorChannel
    t_ns: int
    """When it was read, UTC ns."""
    joules: float | None
    """Cumulative joules; None when the channel could not be read."""
    flags: str = ""
    problem: str = ""
    """Why joules is None, or why the series begins again."""
    early_ns: int | None = None
    late_ns: int = 0
    """As in a Reading."""
    counter: RawCounter | None = None
    """What the hardware's counter showed, where the series begins with it."""
    watts: float | None = None
    """The power that was shown, where it is what `joules` integrate."""


def samples_power_alone(channels: Sequence[SensorChannel]) -> bool:
    """Return whether these are of a board without a counter, whose joules are power that is sampled and integrated."""
    sources = {channel.source for channel in channels}
    return bool(sources) and sources <= {"nvml-power", "nvml-power-average"}


class Sensor(ABC):
    """Reads its channels in two steps, so that a sampler does only what cannot wait.

    `sample` runs on a sampler's thread at the tick, `decode` on the writer's, in order and once for each sample that
    is kept; some are thrown away.
    """

    name: str
    series: Sequence[DeviceSeries] = ()

    @property
    def channels(self) -> Sequence[SensorChannel]:
        """What it reads."""
        return tuple(series.channel for series in self.series)

    @abstractmethod
    def sample(self) -> Raw:
        """Read every channel once and return the answers between monotonic times, ns; never raises."""

    @abstractmethod
    def operations(self) -> Sequence[Operation] | None:
        """Return what compiled code does in the place of `sample`; None when that takes Python, now or ever."""

    @abstractmethod
    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Turn what `sample` returned into points; a channel that failed is a SensorPoint with a problem.

        `offset_ns` is what the monotonic clock lacks to UTC at that tick.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a reader of the results should know of this sensor, JSON types only."""

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source; 0 for the others."""
        for series in self.series:
            if series.counter is not None:
                series.counter.delay_s = delays_s.get(series.channel.source, 0.0)

    @abstractmethod
    def close(self) -> None:
        """Release descriptors and libraries; may be called twice."""


class FileSensor(Sensor):
    """A sensor that reads one file from its start at each tick."""

    fd: int
    size: int
    """Bytes that are read at most."""

    def sample(self) -> Raw:
        """Return [t, bytes or the OSError that came instead, t]."""
        now_ns = time.monotonic_ns()
        try:
            answer: bytes | OSError = os.pread(self.fd, self.size, 0)
        except OSError as error:
            # A traceback would keep this frame for as long as the error waits.
            answer = error.with_traceback(None)
        return [now_ns, answer, time.monotonic_ns()]

    def operations(self) -> Sequence[Operation] | None:
        """Return the read; None when the file is closed."""
        return [Operation(self.size, fd=self.fd, seeks=True)] if self.fd != CLOSED else None

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self.fd != CLOSED:
            os.close(self.fd)
            self.fd = CLOSED


def line_of(file: Path) -> str:
    """Return the one line that a file of the kernel has; "" where it cannot be read."""
    try:
        return file.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


class Missing(NamedTuple):
    """A sensor, or a channel of one, that this host does not offer."""

    sensor: str
    reason: str
    remedy: str
    parts: tuple[Part, ...] = ()
    """Parts that were found and cannot be read; the sum of its domain is unknown without it."""

    def __str__(self) -> str:
        return f"{self.sensor}: {self.reason}. {self.remedy}"


def wraps(sensors: Iterable[Sensor]) -> dict[Part, float]:
    """Return how long each counter that wraps may go unread, s."""
    channels = (channel for sensor in sensors for channel in sensor.describe().get("channels", ()))
    return {(c["device"], c["domain"]): c["wrap_s"] for c in channels if c.get("wrap_s") is not None}


def wrapping(sensors: Iterable[Sensor], interval_ns: int) -> dict[Part, str]:
    """Return the parts whose counter may wrap between two ticks, so that nobody knows how often it did, and why."""
    return {
        part: f"its counter may wrap in {wrap_s * 1e3:.3g} ms, between two ticks: take --interval-ms "
        f"{max(wrap_s * 1e3 / 2, 1):.0f} or less"
        for part, wrap_s in wraps(sensors).items()
        if wrap_s <= interval_ns / NS
    }


class Discovery(NamedTuple):
    """The sensors of a host, or of one kind, and the missing parts with reason and remedy."""

    sensors: tuple[Sensor, ...]
    missing: tuple[Missing, ...] = ()
    boards: str = ""
    """Which boards were chosen, and which not; "" where all are."""
    unsampled: tuple[Board, ...] = ()
    """The boards that were not chosen."""

    @property
    def unreadable(self) -> dict[Part, Missing]:
        """The parts that were found, that no sensor reads, and that leave their domain unknown, and why.

        An estimate of a domain of which nothing is measured is one of all of it.
        """
        channels = [channel for sensor in self.sensors for channel in sensor.channels]
        covered = {channel[:2] for channel in channels}
        estimated = {channel.domain for channel in channels if channel.source == ESTIMATE}
        parts = {part: gap for gap in self.missing for part in gap.parts}
        return {part: gap for part, gap in parts.items() if part not in covered and part[1] not in estimated}

    def unknown(self, interval_ns: int) -> dict[Part, str]:
        """Return the parts that have no figure at ticks of `interval_ns`, so that their domain has none, and why."""
        return {part: str(gap) for part, gap in self.unreadable.items()} | wrapping(self.sensors, interval_ns)

    def require(self) -> None:
        """Raise NoSensorError where there is no sensor."""
        if not self.sensors:
            gaps = "".join(f"\n  {gap}" for gap in self.missing)
            raise NoSensorError(
                f"nothing on this host measures energy:{gaps}\n"
                "`--estimate missing` samples a labelled estimate of CPU energy instead"
            )

    def close(self) -> None:
        """Close every sensor."""
        for sensor in self.sensors:
            sensor.close()
