"""One of a client's daemons: its shards, its load, its silence; and the shards of all daemons together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loaders.errors import StreamError
from loaders.records.planner import Slice
from loaders.streaming.protocol import Catalog, Shard
from loaders.streaming.receiver.session import DaemonSession
from loaders.streaming.receiver.silence import Silence
from loaders.streaming.receiver.stream import Stream


@dataclass(slots=True)
class RemoteDaemon:
    """A daemon with its streams."""

    session: DaemonSession
    places: dict[int, int]
    """From a shard's place in the merged catalog to its place in this daemon's."""
    silence: Silence = field(init=False)
    """Time without a message from it while a request has no answer."""
    is_asked_again: bool = False
    """Whether its requests were repeated in this silence."""
    batches: int = 0
    """Batches with a part from it that are not taken yet."""
    _nbytes: dict[int, int] = field(default_factory=dict)
    """About, of every request under way, by its sequence number."""
    _on: dict[int, int] = field(default_factory=dict)
    """The stream of every request under way."""
    _loads: list[int] = field(default_factory=list)
    """Bytes under way of every stream."""
    _same_places: bool = False
    """Whether its places are those of the merged catalog."""

    def __post_init__(self) -> None:
        self.silence = Silence(self.session.timeout_s)
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
    def has_requests(self) -> bool:
        """Whether a request has no answer."""
        return bool(self._nbytes)

    @property
    def sequences(self) -> list[int]:
        """The requests under way."""
        return list(self._nbytes)

    def load_key(self, allowed: int) -> tuple[bool, int]:
        """Return a sort key for daemons with the same shards: those with room first, then by bytes under way."""
        return self.batches >= allowed, self.nbytes

    def has_shards(self, slices: Iterable[Slice]) -> bool:
        """Return whether it has the shards of all slices."""
        return all(piece.shard in self.places for piece in slices)

    def streams_with_more(self, nbytes: int) -> list[Stream]:
        """Return the streams on which, once any of their answers is there, about so many bytes are still to come."""
        return [
            stream
            for stream, load in zip(self.session.streams, self._loads, strict=True)
            if load > nbytes and load - max(self._nbytes[sequence] for sequence in stream.under_way) >= nbytes
        ]

    def ask(
        self, sequence: int, epoch: int, batch: int, slices: tuple[Slice, ...], nbytes: int, *, check: bool = False
    ) -> None:
        """Request slices, about so many bytes, on the stream with the fewest bytes under way.

        With `check` the daemon checks its own records first.
        """
        if not self._nbytes:
            self.silence.end()
        own = slices
        if not self._same_places:
            own = tuple(Slice(self.places[piece.shard], piece.first, piece.records) for piece in slices)
        request = self.session.request(sequence, epoch, batch, own, check=check)
        place = self._loads.index(min(self._loads))
        self._loads[place] += nbytes
        self._nbytes[sequence], self._on[sequence] = nbytes, place
        self.session.streams[place].ask(sequence, request)

    def grow(self, streams: int) -> None:
        """Add streams up to so many."""
        self.session.connect(streams - len(self._loads))
        self._loads += [0] * (streams - len(self._loads))

    def done(self, sequence: int) -> None:
        """Forget a request."""
        place = self._on.pop(sequence)
        self._loads[place] -= self._nbytes.pop(sequence)
        self.session.streams[place].done(sequence)

    def ask_again(self) -> int:
        """Repeat the requests under way over new connections; return their number."""
        return sum(stream.reconnect() for stream in self.session.streams if stream.under_way and stream.connected)

    def reset(self) -> None:
        """Drop the requests under way, with the connections that carry them."""
        for stream in self.session.streams:
            if stream.under_way:
                stream.reset()
        self._nbytes.clear()
        self._on.clear()
        self._loads = [0] * len(self._loads)
        self.batches = 0
        self.silence.end()

    def describe_silence(self) -> str:
        """Return the message of the error for its silence."""
        return self.silence.describe(self.session.endpoint, self.session.streams)


@dataclass(frozen=True, slots=True)
class Placement:
    """All shards of all daemons, sorted by name, and the daemons that have them."""

    catalog: Catalog
    """As if one daemon served it all; its fingerprint does not depend on the daemons."""
    places: tuple[dict[int, int], ...]
    """Per daemon: from a shard's place in the merged catalog to its place in the daemon's own."""
    holders: tuple[tuple[int, ...], ...]
    """Per shard: the daemons that have it."""

    @classmethod
    def of(cls, endpoints: Sequence[str], catalogs: Sequence[Catalog]) -> Placement:
        """Merge catalogs by shard name.

        Raises StreamError naming the shard and both daemons where two have different shards of one name.
        """
        found: dict[str, tuple[Shard, list[int]]] = {}
        for daemon, catalog in enumerate(catalogs):
            for shard in catalog.shards:
                known, holders = found.setdefault(shard.name, (shard, []))
                if known.digest != shard.digest or known.records != shard.records:
                    raise StreamError(
                        f"{endpoints[holders[0]]} and {endpoints[daemon]} serve different shards of the name "
                        f"{shard.name}: serve replicas of one conversion, or folders with names of their own"
                    )
                holders.append(daemon)
        names = sorted(found)
        place = {name: index for index, name in enumerate(names)}
        digest = hashlib.blake2b(digest_size=16)
        for name in names:
            digest.update(f"{name}\0{found[name][0].digest}\0".encode())
        return cls(
            Catalog(digest.hexdigest(), tuple(found[name][0] for name in names)),
            tuple({place[shard.name]: own for own, shard in enumerate(catalog.shards)} for catalog in catalogs),
            tuple(tuple(found[name][1]) for name in names),
        )

    @property
    def groups(self) -> tuple[int, ...]:
        """Per shard: a number that it shares with the other shards of the same daemons."""
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(holders, len(numbers)) for holders in self.holders)

    def record_bytes(self) -> tuple[float, ...]:
        """Return the mean size of a record of every shard, in bytes."""
        return tuple(shard.nbytes / max(1, shard.records) for shard in self.catalog.shards)
