"""What a link needs, learned while it is used: how many streams, and how many batches under way."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from loaders.errors import LoaderConfigError
from loaders.shared.options import as_whole

Streams: TypeAlias = int | Literal["auto"]
"""Connections to each daemon; "auto" starts with AUTO_MIN_STREAMS and adds some up to AUTO_MAX_STREAMS."""
Prefetch: TypeAlias = int | Literal["auto"]
"""Batches that are requested ahead of each daemon; "auto" is what the link needs, by `Window`."""

AUTO_MIN_STREAMS, AUTO_MAX_STREAMS = 2, 32
_MAX_STREAMS = 64
_GAIN = 1.1
"""More streams are tried while twice as many carry so many times as much."""
_SETTLE_RTTS, _SPAN_RTTS, _SPAN_S = 16, 16, 0.5
"""Round trips for new connections to open their windows; round trips, and at least seconds, of a measurement."""
_ANSWERS = 3
"""Fewest answers of each stream in a measurement, because goodput counts whole answers."""
_FALL = 1.5
"""After a fall of goodput by this factor, more streams are tried again."""
_WAITED = 0.5
"""Share of waiting for the network below which more streams are no use."""


def check_streams(streams: Streams) -> None:
    """Raise LoaderConfigError for a number of connections that is out of range."""
    if streams != "auto" and as_whole(streams, 1, _MAX_STREAMS) is None:
        raise LoaderConfigError(f"streams={streams!r}: expected 1 to {_MAX_STREAMS}, or auto")


MAX_PREFETCH = 256
_PER_STREAM = 2
"""Batches for each stream: one that arrives, and the request for the next one."""
_FEW_BYTES, _FEW_BATCHES = 32 * 2**20, 8
"""Batches are asked for in groups, which costs less CPU time: so many are under way, if they have no more bytes."""
_PRODUCTS = 2
"""Bandwidth-delay products under way, so that the rate can double in a round trip while it is learned."""
_MAX_BYTES = 512 * 2**20
_RATE_RTTS, _RATE_S = 2, 0.1
"""Round trips, and at least seconds, of a measurement of the rate."""


class Window:
    """How many batches have to be under way to keep a link busy, by the highest rate that it has carried."""

    def __init__(self, rtt_s: float, daemons: int, streams: int) -> None:
        """Begin with a few batches, over links to so many daemons with a round trip of `rtt_s` seconds."""
        self._rtt_s, self._daemons = rtt_s, daemons
        self.streams = streams
        """Connections to each daemon."""
        self._rate, self._on_link, self._fewest = 0.0, 0, _FEW_BATCHES
        self._from: tuple[float, int] | None = None

    @property
    def batches(self) -> int:
        """Batches that should be under way from each daemon."""
        return min(MAX_PREFETCH, max(_PER_STREAM * self.streams + self._on_link, self._fewest))

    def measure(self, now: float, nbytes: int, batches: int) -> None:
        """Take the totals from all daemons since the start, at `now` in seconds."""
        if self._from is None or not batches:
            self._from = now, nbytes
        elif (passed := now - self._from[0]) >= max(_RATE_S, _RATE_RTTS * self._rtt_s):
            self._rate = max(self._rate, (nbytes - self._from[1]) / passed)
            self._from = now, nbytes
            each = nbytes / batches
            product = self._rate * self._rtt_s / self._daemons
            self._on_link = int(min(_PRODUCTS * product, _MAX_BYTES) / each)
            self._fewest = min(_FEW_BATCHES, math.ceil(_FEW_BYTES / each))


class Growth:
    """Measures goodput by number of streams; one thread uses it."""

    def __init__(self, rtt_s: float) -> None:
        """Begin with AUTO_MIN_STREAMS streams over a link with a round trip of `rtt_s` seconds."""
        self.streams = AUTO_MIN_STREAMS
        """Connections that each daemon should have."""
        self.goodput: dict[int, float] = {}
        """Bytes a second, by number of streams."""
        self._settle_s, self._span_s = _SETTLE_RTTS * rtt_s, max(_SPAN_S, _SPAN_RTTS * rtt_s)
        self._best = 0.0
        self._again = True
        self._done = False
        self._from: tuple[float, int, int, float] | None = None
        self._settled = 0.0

    def measure(self, now: float, nbytes: int, answers: int, wait_s: float) -> bool:
        """Take the totals at `now`, in seconds; return whether `streams` has grown.

        `nbytes` and `answers` count from the start, and `wait_s` is the time spent waiting for the network.
        """
        if self._from is None:
            self._settled = self._settled or now + self._settle_s
            if now >= self._settled:
                self._from = now, nbytes, answers, wait_s
            return False
        began, bytes_before, answers_before, waited_before = self._from
        passed = now - began
        if passed < self._span_s or answers - answers_before < _ANSWERS * self.streams:
            return False
        self._from = now, nbytes, answers, wait_s
        return wait_s - waited_before >= _WAITED * passed and self._judge((nbytes - bytes_before) / passed)

    def _judge(self, rate: float) -> bool:
        """Take what so many streams carry, in bytes a second; return whether to add some."""
        self.goodput[self.streams] = max(rate, self.goodput.get(self.streams, 0.0))
        if self._done and rate >= self._best / _FALL:
            return False
        grown = (self._done or rate >= _GAIN * self._best) and self.streams < AUTO_MAX_STREAMS
        if grown:
            self._done = False
            self._best, self._again = rate, True
            self.streams, self._from, self._settled = 2 * self.streams, None, 0.0
        else:
            # Once more: what a stretch carries varies, where packets are lost at random.
            self._done, self._again = not self._again, False
        return grown
