"""The number of streams with the best goodput: twice as many are tried while goodput grows."""

from __future__ import annotations

from typing import Literal, TypeAlias

from loaders.arguments import as_whole
from loaders.errors import LoaderConfigError

Streams: TypeAlias = int | Literal["auto"]
"""Connections to each daemon; "auto" starts with AUTO_MIN_STREAMS and adds some up to AUTO_MAX_STREAMS."""

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
