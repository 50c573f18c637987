"""How long a daemon has sent nothing: neither an answer nor bytes of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaders.streaming.receiver.stream import DaemonStream

_LOOKS = 8
"""How often within the timeout the bytes from a daemon without an answer are counted."""
_LEAST_BYTES = 64 * 2**10
"""Bytes that are a part of an answer: ZeroMQ's signs of life are fewer within a timeout."""
_MAX_LOSSES = 3
"""Connections lost one after the other in the middle of a message, after which its bytes are no progress."""
_RECONNECT_S, _RECONNECT_SHARE = 2.0, 0.2
"""Time beyond the timeout in which a lost connection may be made again; at most such a share of the timeout."""


@dataclass(slots=True)
class Silence:
    """The time in which a daemon's open requests have had no answer and no bytes of one."""

    timeout_s: float
    streams: Sequence[DaemonStream]
    """The connections to the daemon."""
    seconds: float = 0.0
    was_lost: bool = False
    """Whether a connection was lost in it."""
    _received: int | None = None
    """Bytes of the connections when they were last counted as a part of an answer."""
    _since_s: float = 0.0
    """`seconds` at that time."""

    @property
    def look_s(self) -> float:
        """Longest wait for a message between two calls of `add`, in seconds."""
        return self.timeout_s / _LOOKS

    @property
    def is_over(self) -> bool:
        """Whether the daemon is to be given up."""
        more_s = min(_RECONNECT_S, _RECONNECT_SHARE * self.timeout_s) if self.was_lost else 0.0
        return self.seconds >= self.timeout_s + more_s

    def end(self) -> None:
        """Begin again: a message has come, or no request is open."""
        self.seconds, self.was_lost, self._received = 0.0, False, None

    def add(self, seconds: float) -> None:
        """Add time without a message, unless bytes have come on the connections."""
        self.seconds += seconds
        if self.seconds < self.look_s:
            return
        received = self._count()
        if self._received is None or received < self._received:  # a new connection counts from 0
            self._received, self._since_s = received, self.seconds
        elif received - self._received >= _LEAST_BYTES:
            self._received, self._since_s = received, 0.0
            self.seconds, self.was_lost = 0.0, False

    def describe(self, endpoint: str) -> str:
        """Return the message of the error for a daemon that is given up, with the rate that was seen."""
        stream = max(self.streams, key=lambda one: len(one.under_way))
        received = self._count() - (self._received or 0)
        rate = max(0, received) / max(self.seconds - self._since_s, self.look_s)
        return (
            f"{endpoint}: no answer within timeout_s={self.timeout_s:g}, at {rate / 1000:.3g} kB/s; {stream.state}. Is "
            "the daemon running there (python -m loaders.streaming serve), and can this node reach it?"
        )

    def _count(self) -> int:
        """Return the bytes on connections that can be parts of answers."""
        return sum(stream.count_received() for stream in self.streams if stream.losses < _MAX_LOSSES)
