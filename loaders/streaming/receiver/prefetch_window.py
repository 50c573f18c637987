"""How many batches have to be under way to keep a link busy, learned while it is used."""

from __future__ import annotations

import math

from loaders.streaming.settings import MAX_PREFETCH

_PER_STREAM = 2
"""Batches for each stream: one that arrives, and the request for the next one."""
_FEW_BYTES, _FEW_BATCHES = 32 * 2**20, 8
"""Batches are requested in groups, which costs less CPU time: so many are under way, if they have no more bytes."""
_PRODUCTS = 2
"""Bandwidth-delay products under way, so that the rate can double in a round trip while it is learned."""
_MAX_BYTES = 512 * 2**20
_RATE_RTTS, _RATE_S = 2, 0.1
"""Round trips, and at least seconds, of a measurement of the rate."""


class PrefetchWindow:
    """Counts the batches that a link needs under way, by the highest rate that it has carried."""

    def __init__(self, rtt_s: float, daemons: int, streams: int) -> None:
        """Begin with a few batches, over `streams` connections to each daemon with a round trip of `rtt_s` seconds."""
        self._rtt_s, self._daemons, self._streams = rtt_s, daemons, streams
        self._rate, self._on_link, self._fewest = 0.0, 0, _FEW_BATCHES
        self._from: tuple[float, int] | None = None

    @property
    def batches(self) -> int:
        """Batches that should be under way from each daemon."""
        return min(MAX_PREFETCH, max(_PER_STREAM * self._streams + self._on_link, self._fewest))

    def measure(self, now: float, nbytes: int, batches: int) -> None:
        """Measure the rate from the totals of all daemons since the start, at `now` in seconds."""
        if self._from is None or not batches:
            self._from = now, nbytes
        elif (passed := now - self._from[0]) >= max(_RATE_S, _RATE_RTTS * self._rtt_s):
            self._rate = max(self._rate, (nbytes - self._from[1]) / passed)
            self._from = now, nbytes
            each = nbytes / batches
            product = self._rate * self._rtt_s / self._daemons
            self._on_link = int(min(_PRODUCTS * product, _MAX_BYTES) / each)
            self._fewest = min(_FEW_BATCHES, math.ceil(_FEW_BYTES / each))
