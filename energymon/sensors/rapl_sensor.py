"""RAPL's counters behind descriptors, and which of them really count: what perf's events and powercap's files share.

A domain is a socket or die as powercap names it, "package-0" or "package-0-die-1", and what of it is counted.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from energymon.reading import Domain
from energymon.sensors.base import CLOSED, Discovery, Missing, Operation, Part, Raw, Sensor, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter, DeviceSeries
from energymon.sensors.updates import lag_of, polled

MAX_DOMAIN_W: Final = 1000.0
"""Above what any socket or its DRAM draws."""

SETTLE_S: Final = 0.1
"""A live counter moves every millisecond or so."""

_STILL: Final[Mapping[Domain, str]] = {
    "dram": "some processors have a DRAM domain that never counts; nothing can be done about it",
    "cpu": "a package in use always draws power: a virtual machine may show a counter that nothing drives, and on bare"
    " metal a cold boot or the machine's firmware may help",
}
_REPEATED: Final = "Linux 6.9 to 6.13 list an AMD socket's one counter once a die; the first die stands for the socket"
_SAME_MOVES: Final = 10
"""Two counters of their own do not move in step this many times."""
_LAG_LONGEST_S: Final = 0.5


class RaplCounters(ABC):
    """One descriptor, and the counters that a read of it shows."""

    seeks: ClassVar[bool]
    """Whether it is a file: read from its start each time, and opened again when a value is impossible."""

    def __init__(self, source: str, label: str, size: int, counters: Mapping[Part, Counter]) -> None:
        """Open it; `label` names it in messages, and `size` is how many bytes a read has at most. Raises OSError."""
        self.size = size
        self.series = [
            DeviceSeries(SensorChannel(*domain, source), label, counter) for domain, counter in counters.items()
        ]
        self.fds: tuple[int, ...] = ()
        """The descriptor that is read, and those that belong to it."""
        self.in_doubt = False
        """Whether it is opened again before the next read of a sample."""
        self.open()

    @property
    def fd(self) -> int:
        """The descriptor that is read; CLOSED where there is none."""
        return next(iter(self.fds), CLOSED)

    @abstractmethod
    def open(self) -> None:
        """Open it, closing the descriptors that were open before; raises OSError."""

    @abstractmethod
    def parse(self, data: bytes) -> Sequence[int]:
        """Return each counter's value; raises ValueError for data that has none."""

    def started(self, i: int, point: SensorPoint) -> SensorPoint:
        """Return the point that the series of counter `i` starts with, with the hardware's counter behind that."""
        return point

    @abstractmethod
    def describe(self, i: int) -> dict[str, Any]:
        """Return what counter `i` is read from, JSON types only."""

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        fds, self.fds = self.fds, ()
        for fd in reversed(fds):
            os.close(fd)

    def read(self) -> bytes:
        """Read it once; raises OSError."""
        return os.pread(self.fd, self.size, 0) if self.seeks else os.read(self.fd, self.size)

    def value(self, i: int) -> int | None:
        """Return what counter `i` shows now; None if it cannot be read."""
        try:
            return self.parse(self.read())[i]
        except (OSError, ValueError):
            return None


class RaplSensor(Sensor):
    """Package and DRAM of every socket; core and uncore are inside package and are left out.

    The descriptors stay open and are read together. What failed, or what `decode` doubts on another thread, is opened
    again in the next `sample`.
    """

    def __init__(self, name: str, files: Sequence[RaplCounters], confirmed_by: str | None) -> None:
        """Take the open descriptors; `confirmed_by` names the interface that lists the same domains."""
        self.name, self._files, self._confirmed_by = name, files, confirmed_by
        self.series = [series for file in files for series in file.series]

    def sample(self) -> Raw:
        """Return [t, value, t, …, t]: what each descriptor shows, bytes or an OSError, between monotonic times, ns."""
        now_ns = time.monotonic_ns
        raw: Raw = [now_ns()]
        for file in self._files:
            try:
                if file.in_doubt:
                    file.in_doubt = False
                    file.open()
                value: bytes | OSError = file.read()
            except OSError as error:
                # A traceback would keep this frame, and the values read with it, for as long as the error waits.
                value = error.with_traceback(None)
                file.in_doubt = True
            raw += value, now_ns()
        return raw

    def operations(self) -> Sequence[Operation] | None:
        """Return a read a descriptor; None while one of them is closed or in doubt."""
        if any(file.in_doubt or file.fd == CLOSED for file in self._files):
            return None
        return [Operation(file.size, fd=file.fd, seeks=file.seeks) for file in self._files]

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return a point of each counter; those that one read shows share their time."""
        points: list[SensorPoint] = []
        for at, file in enumerate(self._files):
            before_ns, data, after_ns = raw[2 * at : 2 * at + 3]
            t_ns = (before_ns + after_ns) // 2
            try:
                if isinstance(data, OSError):
                    raise data
                values = file.parse(data)
            except (OSError, ValueError) as error:
                file.in_doubt |= isinstance(error, ValueError)
                why = str(error.strerror) if isinstance(error, OSError) else str(error)
                points += [series.unread(why, t_ns + offset_ns) for series in file.series]
                continue
            for i, series in enumerate(file.series):
                point = series.point(values[i], t_ns, before_ns, after_ns, offset_ns)
                if point.joules is None:
                    file.in_doubt |= file.seeks
                elif point.counter is not None:
                    point = file.started(i, point)
                points.append(point)
        return points

    def describe(self) -> dict[str, Any]:
        """Return each counter's channel, lag and origin."""
        return {
            "sensor": self.name,
            "source": self.channels[0].source,
            "confirmed_by": self._confirmed_by,
            "channels": [
                {**series.describe(), **file.describe(i)}
                for file in self._files
                for i, series in enumerate(file.series)
            ],
        }

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        for file in self._files:
            file.close()


def unread(domain: Part, counting: Collection[Part]) -> tuple[Part, ...]:
    """Return a domain that is left out if its joules are missing from a sum.

    A package always draws power. DRAM that no socket counts is no domain of the host; DRAM that another one of
    `counting` counts is a part of it.
    """
    return (domain,) if domain[1] == "cpu" or any(of == domain[1] for _, of in counting) else ()


def open_counting(
    name: str,
    open_files: Callable[[Collection[Part]], tuple[Sequence[RaplCounters], list[Missing]]],
    wanted: Collection[Part],
    settle_s: float,
    confirmed_by: str | None,
) -> Discovery:
    """Open counters, without those that do not move within `settle_s` or repeat another one, which are named.

    `open_files` opens the counters of domains, and also returns those that it cannot open. `confirmed_by` names the
    interface that lists the same domains. How old the values may be is learned unless `settle_s` is 0.
    """
    files, missing = open_files(wanted)
    read = _reads(files)
    labels = {
        series.channel[:2]: file.describe(i).get("path", f"{series.channel.domain} of {series.channel.device}")
        for file in files
        for i, series in enumerate(file.series)
    }
    resting = _resting(read, settle_s)
    for domain in sorted(resting):
        parts = unread(domain, read.keys() - resting)
        missing.append(Missing(name, f"{labels[domain]} does not move", _STILL[domain[1]], parts))
        del read[domain]
    same = repeated(read, settle_s)
    missing += [Missing(name, f"{labels[domain]} repeats {first[0]}", _REPEATED) for domain, first in same.items()]
    if left_out := resting | same.keys():
        for file in files:
            file.close()
        files, again = open_files(set(wanted) - left_out)
        missing += [gap for gap in again if gap not in missing]
    sensor = RaplSensor(name, files, confirmed_by)
    if settle_s > 0:
        shown = polled([*_reads(files).values()], step_s=0.0001, usual_s=0.05, longest_s=_LAG_LONGEST_S)
        for series, looks in zip(sensor.series, shown, strict=True):
            assert series.counter is not None
            series.counter.lag_s = lag_of(looks) or _LAG_LONGEST_S
    return Discovery((sensor,) if files else (), tuple(missing))


def _reads(files: Sequence[RaplCounters]) -> dict[Part, Callable[[], int | None]]:
    """Return what reads each domain's counter."""
    return {series.channel[:2]: partial(file.value, i) for file in files for i, series in enumerate(file.series)}


def repeated(read: Mapping[Part, Callable[[], int | None]], settle_s: float) -> dict[Part, Part]:
    """Return the dies whose counter is that of an earlier die of their socket, and which one that is.

    `read` returns what a domain shows, None where it cannot be read.
    """
    found: dict[Part, Part] = {}
    own: dict[tuple[str, Domain], list[Part]] = {}
    for domain in read:
        dies = own.setdefault((domain[0].partition("-die-")[0], domain[1]), [])
        same = next((other for other in dies if _in_step(read[other], read[domain], settle_s)), None)
        if same is None:
            dies.append(domain)
        else:
            found[domain] = same
    return found


def _resting(read: Mapping[Part, Callable[[], int | None]], settle_s: float) -> set[Part]:
    """Return the domains that show the same for `settle_s`; live ones are found in a few ms."""
    first = {domain: value() for domain, value in read.items()}
    resting = set(first) if settle_s > 0 else set()
    deadline = time.monotonic() + settle_s
    while resting and time.monotonic() < deadline:
        time.sleep(0.002)
        resting = {domain for domain in resting if read[domain]() == first[domain]}
    return resting


def _in_step(first: Callable[[], int | None], second: Callable[[], int | None], settle_s: float) -> bool:
    """Return whether two counters keep their distance exactly; False when that cannot be seen in time."""
    values: set[int] = set()
    distances: set[int] = set()
    deadline = time.monotonic() + 10 * settle_s
    while len(distances) < 2 and time.monotonic() < deadline:
        time.sleep(0.0002)
        before, shown, after = first(), second(), first()
        if before is not None and shown is not None and before == after:
            values.add(before)
            distances.add(shown - before)
            if len(values) > _SAME_MOVES:
                return len(distances) == 1
    return False
