"""RAPL's counters behind descriptors, and which of them really count: what perf's events and powercap's files share.

A domain is a socket or die as powercap names it, "package-0" or "package-0-die-1", and what of it is counted.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from energymon.reading import Domain
from energymon.sensors.base import CLOSED, Missing, Part, RawCounter, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter, DeviceSeries
from energymon.sensors.updates import lag_of, polled

if TYPE_CHECKING:
    from energymon.ticker.ticker import Operation, Raw

MAX_DOMAIN_W: Final = 1000.0
"""Above what any socket or its DRAM draws."""

SETTLE_S: Final = 0.1
"""A live counter moves every millisecond or so."""
_POLL_S: Final = 0.002

_STILL: Final[Mapping[Domain, str]] = {
    "dram": "some processors have a DRAM domain that never counts; nothing can be done about it",
    "cpu": "a package in use always draws power: a virtual machine may show a counter that nothing drives, and on bare"
    " metal a cold boot or the machine's firmware may help",
}
_REPEATED: Final = "Linux 6.9 to 6.13 list an AMD socket's one counter once a die; the first die stands for the socket"
_SAME_MOVES: Final = 10
"""Two counters of their own do not move in step this many times."""
_SAME_SETTLES: Final = 10
"""Two that move in step are watched for this many times the settling time."""
_SAME_POLL_S: Final = 0.0002
_LAG_POLL_S: Final = 0.0001
_LAG_USUAL_S: Final = 0.05
_LAG_LONGEST_S: Final = 0.5


class RaplCounters(ABC):
    """One descriptor, and the counters that a read of it shows."""

    reopens_on_doubt: ClassVar[bool]
    """Whether the file behind a counter with an impossible value may be another, and is opened again."""
    seeks: ClassVar[bool]
    """Whether it is read from its start each time."""

    def __init__(
        self, source: str, domains: Sequence[Part], counters: Sequence[Counter], size: int, label: str
    ) -> None:
        """Take the domains that are counted, their counters, how many bytes a read has at most, and a name of it."""
        self.size = size
        self.domains = domains
        self.counters = counters
        self.series = [
            DeviceSeries(SensorChannel(*domain, source), label, counter)
            for domain, counter in zip(domains, counters, strict=True)
        ]
        self.fd = CLOSED
        self.others: list[int] = []
        """Descriptors that belong to `fd` and are closed with it."""

    @abstractmethod
    def open(self) -> None:
        """Open it, closing the file that was open before; raises OSError."""

    @abstractmethod
    def parse(self, data: bytes) -> Sequence[int]:
        """Return each counter's value; raises ValueError for data that has none."""

    def started(self, i: int, shown: RawCounter) -> RawCounter | None:
        """Return the hardware's counter behind counter `i`, which a series starts with; None where it is not known."""
        return shown

    @abstractmethod
    def describe(self, i: int) -> dict[str, object]:
        """Return what counter `i` is read from, JSON types only."""

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        while self.others:
            os.close(self.others.pop())
        if self.fd != CLOSED:
            os.close(self.fd)
            self.fd = CLOSED

    def read(self) -> bytes:
        """Read it once; raises OSError."""
        return os.pread(self.fd, self.size, 0) if self.seeks else os.read(self.fd, self.size)

    def value(self, i: int) -> int | None:
        """Return what counter `i` shows now; None if it cannot be read."""
        try:
            return self.parse(self.read())[i]
        except (OSError, ValueError):
            return None


class RaplSensor:
    """Package and DRAM of every socket; core and uncore are inside package and are left out.

    The descriptors stay open and are read together. What failed, or what `decode` doubts on another thread, is opened
    again in the next `sample`.
    """

    def __init__(self, name: str, files: Sequence[RaplCounters], confirmed_by: str | None = None) -> None:
        """Take the open descriptors; `confirmed_by` names the interface that lists the same domains."""
        self.name = name
        self._files = files
        self._broken: deque[int] = deque()
        self._errors: dict[int, OSError] = {}
        self._series = [series for file in files for series in file.series]
        self.channels = tuple(series.channel for series in self._series)
        self._confirmed_by = confirmed_by

    def sample(self) -> Raw:
        """Return [t, value, t, …, t]: what each descriptor shows between two times, monotonic ns.

        A value is bytes, or the OSError that came instead.
        """
        if self._broken:
            self._reopen()
        now_ns = time.monotonic_ns
        raw: Raw = [now_ns()]
        for index, file in enumerate(self._files):
            try:
                value: bytes | OSError = file.read()
            except OSError as error:
                # A traceback would keep this frame, and the values read with it, for as long as the error waits.
                error.__traceback__ = None
                self._broken.append(index)
                value = self._errors.get(index, error)
            raw += value, now_ns()
        return raw

    def operations(self) -> list[Operation] | None:
        """Return a read a descriptor; None while one of them is closed or in doubt."""
        from energymon.ticker.ticker import Operation

        if self._broken or self._errors or any(file.fd == CLOSED for file in self._files):
            return None
        return [Operation(file.size, fd=file.fd, seeks=file.seeks) for file in self._files]

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return a point of each counter; those that one read shows share their time."""
        points: list[SensorPoint] = []
        before_ns: int = raw[0]
        at = 1
        for index, file in enumerate(self._files):
            data, after_ns = raw[at], raw[at + 1]
            at += 2
            begin_ns, before_ns = before_ns, after_ns
            t_ns = (begin_ns + after_ns) // 2
            try:
                if type(data) is not bytes:
                    raise data
                values = file.parse(data)
            except (OSError, ValueError) as error:
                if isinstance(error, ValueError):
                    self._broken.append(index)
                why = str(error.strerror) if isinstance(error, OSError) else str(error)
                points += [series.failed(why, t_ns + offset_ns) for series in file.series]
                for counter in file.counters:
                    counter.interrupt()
                continue
            for i, series in enumerate(file.series):
                point = series.point(values[i], t_ns, begin_ns, after_ns, offset_ns)
                if point.joules is None and file.reopens_on_doubt:
                    self._broken.append(index)
                elif point.counter is not None:
                    point = point._replace(counter=file.started(i, point.counter))
                points.append(point)
        return points

    def describe(self) -> dict[str, object]:
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

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source."""
        for series in self._series:
            series.delay(delays_s)

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        for file in self._files:
            file.close()

    def _reopen(self) -> None:
        broken = {self._broken.popleft() for _ in range(len(self._broken))}
        for index in broken:
            try:
                self._files[index].open()
                self._errors.pop(index, None)
            except OSError as error:
                error.__traceback__ = None
                self._errors[index] = error


def unread(domain: Part, counting: Collection[Part]) -> tuple[Part, ...]:
    """Return a domain that is left out if its joules are missing from a sum.

    A package always draws power. DRAM that no socket counts is no domain of the host; DRAM that another one of
    `counting` counts is a part of it.
    """
    return (domain,) if domain[1] == "cpu" or any(of == domain[1] for _, of in counting) else ()


def drop_idle(
    sensor: str, files: Collection[RaplCounters], name_of: Callable[[Part], str], settle_s: float
) -> tuple[set[Part], list[Missing]]:
    """Return the domains that do not move within `settle_s` or repeat another one, and what to say of each.

    `name_of` names a domain in messages.
    """
    values = {domain: partial(file.value, i) for file, i, domain in _each(files)}
    missing: list[Missing] = []
    resting = _resting(values, settle_s)
    for domain in sorted(resting):
        parts = unread(domain, values.keys() - resting)
        missing.append(Missing(sensor, f"{name_of(domain)} does not move", _STILL[domain[1]], parts))
        del values[domain]
    same = repeated(values, settle_s)
    missing += [Missing(sensor, f"{name_of(domain)} repeats {first[0]}", _REPEATED) for domain, first in same.items()]
    return resting | same.keys(), missing


def learn_lags(files: Collection[RaplCounters], settle_s: float) -> None:
    """Poll the counters, to learn how old their values may be; nothing where `settle_s` leaves no time for it."""
    if settle_s <= 0:
        return
    each = list(_each(files))
    reads = [partial(file.value, i) for file, i, _ in each]
    shown = polled(reads, step_s=_LAG_POLL_S, usual_s=_LAG_USUAL_S, longest_s=_LAG_LONGEST_S)
    for (file, i, _), looks in zip(each, shown, strict=True):
        file.counters[i].lag_s = lag_of(looks) or _LAG_LONGEST_S


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
        time.sleep(_POLL_S)
        resting = {domain for domain in resting if read[domain]() == first[domain]}
    return resting


def _in_step(first: Callable[[], int | None], second: Callable[[], int | None], settle_s: float) -> bool:
    """Return whether two counters keep their distance exactly; False when that cannot be seen in time."""
    apart: int | None = None
    last: int | None = None
    moves = 0
    deadline = time.monotonic() + _SAME_SETTLES * settle_s
    while time.monotonic() < deadline:
        time.sleep(_SAME_POLL_S)
        before, shown, after = first(), second(), first()
        if before is None or shown is None or before != after:
            continue
        if apart is not None and shown - before != apart:
            return False
        apart = shown - before
        if before != last:
            last = before
            moves += 1
            if moves > _SAME_MOVES:
                return True
    return False


def _each(files: Iterable[RaplCounters]) -> Iterator[tuple[RaplCounters, int, Part]]:
    for file in files:
        for i, domain in enumerate(file.domains):
            yield file, i, domain
