"""One of the daemons that a client asks: what it holds, how much it has to answer, how long it has been silent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loaders.streaming.planner import Slice
from loaders.streaming.receiver.session import Session
from loaders.streaming.receiver.stream import Stream

__all__ = ["Source"]


@dataclass(slots=True)
class Source:
    """A daemon with its streams."""

    session: Session
    places: dict[int, int]
    """From a shard's place in the merged catalog to its place in this daemon's."""
    silent_s: float = 0.0
    """How long it has been waited for without a sign."""
    is_asked_again: bool = False
    """Whether it was asked again since it has been silent."""
    batches: int = 0
    """Batches of which it has a part and that nobody has taken."""
    _nbytes: dict[int, int] = field(default_factory=dict)
    """Of every request under way, by its sequence number, about."""
    _on: dict[int, int] = field(default_factory=dict)
    """The stream of every request under way."""
    _loads: list[int] = field(default_factory=list)
    """Bytes under way of every stream."""
    _same_places: bool = False
    """Whether its catalog is the merged one as far as it has shards."""

    def __post_init__(self) -> None:
        self._loads = [0] * len(self.session.streams)
        self._same_places = all(merged == own for merged, own in self.places.items())

    @property
    def connected(self) -> bool:
        """Whether one of its streams is."""
        return any(stream.connected for stream in self.session.streams)

    @property
    def nbytes(self) -> int:
        """Bytes under way, about."""
        return sum(self._loads)

    @property
    def waited_for(self) -> bool:
        """Whether a request has no answer."""
        return bool(self._nbytes)

    @property
    def sequences(self) -> list[int]:
        """The requests under way."""
        return list(self._nbytes)

    def reluctance(self, allowed: int) -> tuple[bool, int]:
        """Order daemons that have the same shards: those with room first, then those with little under way."""
        return self.batches >= allowed, self.nbytes

    def holds(self, slices: Iterable[Slice]) -> bool:
        """Return whether it has the shards of all slices."""
        return all(piece.shard in self.places for piece in slices)

    def ask(
        self, sequence: int, epoch: int, batch: int, slices: tuple[Slice, ...], nbytes: int, *, check: bool = False
    ) -> None:
        """Ask for slices, about so many bytes, on the stream that has the least under way.

        With `check` the daemon looks first whether its own records are whole.
        """
        if not self._nbytes:
            self.silent_s = 0.0
        own = slices
        if not self._same_places:
            own = tuple(Slice(self.places[piece.shard], piece.first, piece.records) for piece in slices)
        request = self.session.request(sequence, epoch, batch, own, check=check)
        place = self._loads.index(min(self._loads))
        self._loads[place] += nbytes
        self._nbytes[sequence], self._on[sequence] = nbytes, place
        self.session.streams[place].ask(sequence, request)

    def grow(self, streams: int) -> None:
        """Have so many streams, which are more than there are."""
        self.session.connect(streams - len(self._loads))
        self._loads += [0] * (streams - len(self._loads))

    def done(self, sequence: int) -> None:
        """Forget a request."""
        place = self._on.pop(sequence)
        self._loads[place] -= self._nbytes.pop(sequence)
        self.session.streams[place].done(sequence)

    def ask_again(self) -> int:
        """Ask again, over new connections, for what is under way on those that are silent; return how many requests."""
        return sum(stream.reconnect() for stream in self.session.streams if stream.under_way and stream.connected)

    def reset(self) -> None:
        """Drop everything that is under way, with the connections that carry it."""
        for stream in self.session.streams:
            if stream.under_way:
                stream.reset()
        self._nbytes.clear()
        self._on.clear()
        self._loads = [0] * len(self._loads)
        self.batches, self.silent_s = 0, 0.0

    def silence(self) -> str:
        """Say what it looks like that nothing has come for so long."""
        return self.session.silence(self._busiest())

    def _busiest(self) -> Stream:
        return max(self.session.streams, key=lambda stream: len(stream.under_way))
