"""Counters of RAPL behind descriptors: what perf's events and powercap's files have in common."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from energymon.errors import CounterError
from energymon.sensors.base import CLOSED, Part, RawCounter, SensorChannel, SensorPoint
from energymon.sensors.counter import Counter
from energymon.ticker.ticker import Operation, Raw


class RaplCounters(ABC):
    """One descriptor, and the counters that a read of it shows."""

    reopens_on_doubt: bool
    """Whether the file behind a counter with an impossible value may be another, and is opened again."""

    def __init__(self, source: str, domains: Sequence[Part], counters: Sequence[Counter]) -> None:
        """Take the domains that are counted, and their counters."""
        self.domains = domains
        self.channels = [SensorChannel(*domain, source) for domain in domains]
        self.counters = counters
        self.fd = CLOSED
        self.others: list[int] = []
        """Descriptors that belong to `fd` and are closed with it."""

    @abstractmethod
    def open(self) -> None:
        """Open it, closing the file that was open before; raises OSError."""

    @abstractmethod
    def read(self) -> bytes:
        """Read it once; raises OSError."""

    @abstractmethod
    def parse(self, data: bytes) -> Sequence[int]:
        """Return each counter's value; raises ValueError for data that has none."""

    @abstractmethod
    def operation(self) -> Operation:
        """Return the read for compiled code."""

    @abstractmethod
    def started(self, i: int, value: int) -> RawCounter | None:
        """Return counter `i` with the value that a series starts with; None where it is not known."""

    @abstractmethod
    def problem(self, why: str) -> str:
        """Return a message about it."""

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

    def __init__(
        self,
        name: str,
        files: Sequence[RaplCounters],
        call: Callable[..., bytes],
        *args: int,
        confirmed_by: str | None = None,
    ) -> None:
        """Take the open descriptors and the call(fd, *args) that reads one; `confirmed_by` lists the same domains."""
        self.name = name
        self._files, self._call, self._args = files, call, args
        self._fds = [file.fd for file in files]
        self._broken: deque[int] = deque()
        self._errors: dict[int, OSError] = {}
        self.channels = tuple(channel for file in files for channel in file.channels)
        self._confirmed_by = confirmed_by

    def sample(self) -> Raw:
        """Return [t, value, t, …, t]: what each descriptor shows between two times, monotonic ns.

        A value is bytes, or the OSError that came instead.
        """
        if self._broken:
            self._reopen()
        call, args, now_ns = self._call, self._args, time.monotonic_ns
        raw: Raw = [now_ns()]
        for fd in self._fds:
            try:
                value: bytes | OSError = call(fd, *args)
            except OSError as error:
                value = self._failed(len(raw) // 2, error)
            raw += value, now_ns()
        return raw

    def operations(self) -> list[Operation] | None:
        """Return a read a descriptor; None while one of them is closed or in doubt."""
        if self._broken or self._errors or CLOSED in self._fds:
            return None
        return [file.operation() for file in self._files]

    def decode(self, raw: Raw, offset_ns: int) -> list[SensorPoint]:
        """Return a point of each counter; those that one read shows share their time."""
        points: list[SensorPoint] = []
        before_ns: int = raw[0]
        at = 1
        for index, file in enumerate(self._files):
            data, after_ns = raw[at], raw[at + 1]
            at += 2
            begin_ns, before_ns = before_ns, after_ns
            now_ns = (begin_ns + after_ns) // 2
            t_ns = now_ns + offset_ns
            try:
                if type(data) is not bytes:
                    raise data
                values = file.parse(data)
            except (OSError, ValueError) as error:
                if isinstance(error, ValueError):
                    self._broken.append(index)
                why = file.problem(str(error.strerror) if isinstance(error, OSError) else str(error))
                points += [SensorPoint(channel, t_ns, None, problem=why) for channel in file.channels]
                for counter in file.counters:
                    counter.interrupt()
                continue
            for i, (channel, counter) in enumerate(zip(file.channels, file.counters, strict=True)):
                try:
                    joules, flags = counter.update(values[i], after_ns, begin_ns)
                except CounterError as error:
                    if file.reopens_on_doubt:
                        self._broken.append(index)
                    points.append(SensorPoint(channel, t_ns, None, problem=file.problem(str(error))))
                else:
                    start, why = (file.started(i, values[i]), counter.why) if flags else (None, "")
                    early_ns, late_ns = max(now_ns - counter.since_ns, 0), after_ns - now_ns
                    points.append(SensorPoint(channel, t_ns, joules, flags, why, early_ns, late_ns, start))
        return points

    def describe(self) -> dict[str, object]:
        """Return each counter's channel, lag and origin."""
        return {
            "sensor": self.name,
            "source": self.channels[0].source,
            "confirmed_by": self._confirmed_by,
            "channels": [
                {**channel._asdict(), "lag_s": counter.age_s, "delay_s": counter.delay_s, **file.describe(i)}
                for file in self._files
                for i, (channel, counter) in enumerate(zip(file.channels, file.counters, strict=True))
            ],
        }

    def delay(self, delays_s: Mapping[str, float]) -> None:
        """Take how much older than its update a counter's value may be, s, by source."""
        for file in self._files:
            for channel, counter in zip(file.channels, file.counters, strict=True):
                counter.delay_s = delays_s.get(channel.source, 0.0)

    def close(self) -> None:
        """Close the descriptors; may be called twice."""
        self._fds = [CLOSED] * len(self._fds)
        for file in self._files:
            file.close()

    def _failed(self, index: int, error: OSError) -> OSError:
        # A traceback would keep this frame, and the values read with it, for as long as the error waits.
        error.__traceback__ = None
        self._broken.append(index)
        return self._errors.get(index, error)

    def _reopen(self) -> None:
        broken = {self._broken.popleft() for _ in range(len(self._broken))}
        for index in broken:
            try:
                self._files[index].open()
                self._errors.pop(index, None)
            except OSError as error:
                error.__traceback__ = None
                self._errors[index] = error
            self._fds[index] = self._files[index].fd
