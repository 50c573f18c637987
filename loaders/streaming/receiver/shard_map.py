"""The shards of all daemons together, as if one served them all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loaders.errors import StreamError
from loaders.streaming.protocol import ServedShard, ShardCatalog


class ShardPlace(NamedTuple):
    """Where a shard is served."""

    daemon: int
    place: int
    """In the daemon's own catalog."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    """All shards, sorted by name, and the daemon that has each."""

    catalog: ShardCatalog
    """Its fingerprint does not depend on which daemon has which shard."""
    places: tuple[ShardPlace, ...]

    @classmethod
    def merge(cls, endpoints: Sequence[str], catalogs: Sequence[ShardCatalog]) -> ShardMap:
        """Merge the daemons' catalogs; raises StreamError naming a shard that two of them serve, and both daemons."""
        found: dict[str, tuple[ServedShard, ShardPlace]] = {}
        for daemon, catalog in enumerate(catalogs):
            for place, shard in enumerate(catalog.shards):
                if shard.name in found:
                    raise StreamError(
                        f"{endpoints[found[shard.name][1].daemon]} and {endpoints[daemon]} both serve a shard of the "
                        f"name {shard.name}: give each daemon shards of its own, with names of their own"
                    )
                found[shard.name] = shard, ShardPlace(daemon, place)
        names = sorted(found)
        digest = hashlib.blake2b(digest_size=16)
        for name in names:
            digest.update(f"{name}\0{found[name][0].digest}\0".encode())
        shards = tuple(found[name][0] for name in names)
        return cls(ShardCatalog(digest.hexdigest(), shards), tuple(found[name][1] for name in names))

    @property
    def daemons(self) -> tuple[int, ...]:
        """The daemon of every shard."""
        return tuple(place.daemon for place in self.places)

    def record_bytes(self) -> tuple[float, ...]:
        """Return the mean size of a record of every shard, in bytes."""
        return tuple(shard.nbytes / max(1, shard.records) for shard in self.catalog.shards)
