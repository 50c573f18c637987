"""Which daemon holds which shard: the catalogs of several daemons as one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from loaders.errors import StreamError
from loaders.streaming.protocol.messages import Catalog, Shard

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """All shards of all daemons, sorted by name, and who holds them."""

    catalog: Catalog
    """As if one daemon served it all; its fingerprint does not depend on which daemon holds what."""
    places: tuple[dict[int, int], ...]
    """Per daemon: from a shard's place in the merged catalog to its place in the daemon's own."""
    holders: tuple[tuple[int, ...], ...]
    """Per shard: the daemons that hold it."""

    @classmethod
    def of(cls, endpoints: Sequence[str], catalogs: Sequence[Catalog]) -> Placement:
        """Merge catalogs by shard name.

        Raises StreamError naming the shard and both daemons where two hold different shards of one name.
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
        """Per shard: a number that it shares with the shards that the same daemons hold."""
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(holders, len(numbers)) for holders in self.holders)

    def record_bytes(self) -> tuple[float, ...]:
        """Return the mean size of a record of every shard, in bytes."""
        return tuple(shard.nbytes / max(1, shard.records) for shard in self.catalog.shards)
