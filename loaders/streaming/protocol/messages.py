"""What client and daemon say to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaders.streaming.planner import Slice

__all__ = [
    "MAX_PADDING",
    "MAX_RECORDS",
    "MAX_REQUEST_BYTES",
    "MAX_SLICES",
    "BatchHeader",
    "Buffer",
    "Catalog",
    "Damaged",
    "Get",
    "Health",
    "Hello",
    "Refusal",
    "Reply",
    "Report",
    "Request",
    "Shard",
    "Warm",
    "Warmed",
    "WireFormat",
]

MAX_RECORDS = 65_536
"""Most records that one request may ask for."""
MAX_PADDING = 2**20
"""Most bytes of zeros that one request may ask for."""
MAX_SLICES = 1024
"""Most slices that one request may name."""
MAX_REQUEST_BYTES = 32 * 2**10
"""Most bytes of a request; a longer one closes the connection."""

_Ints = npt.NDArray[np.int64]
Buffer: TypeAlias = bytes | memoryview
WireFormat: TypeAlias = Literal["raw", "msgpack"]
"""How a batch travels: records as frames of their own, not copied, or all in one msgpack frame."""


class Shard(NamedTuple):
    """One shard of a daemon."""

    name: str
    records: int
    nbytes: int
    digest: str
    """Of its name and index: shards of one name and digest are replicas."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks what is served."""


@dataclass(frozen=True, slots=True)
class Health:
    """Asks how the daemon is."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Asks for zeros, which open a connection's TCP window."""

    sequence: int
    padding: int = 0
    """Bytes of zeros, at most MAX_PADDING, in a frame of their own."""


@dataclass(frozen=True, slots=True)
class Get:
    """Asks for one batch, or a part of one."""

    sequence: int
    """Chosen by the client, repeated in the answer."""
    fingerprint: str
    """Of the catalog by which the client planned."""
    epoch: int
    batch: int
    slices: tuple[Slice, ...]
    """`shard` is the place in the catalog of the daemon that is asked."""
    wire: WireFormat = "raw"
    check: bool = False
    """Whether the daemon shall look first whether its own records are whole."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a daemon serves."""

    fingerprint: str
    """Changes with the shards' content."""
    shards: tuple[Shard, ...]
    """Sorted by name."""

    @property
    def shard_records(self) -> tuple[int, ...]:
        """Number of records of every shard."""
        return tuple(shard.records for shard in self.shards)

    @property
    def samples(self) -> int:
        """Number of records in all shards."""
        return sum(self.shard_records)


@dataclass(frozen=True, slots=True)
class Warmed:
    """Comes before the zeros that were asked for."""

    sequence: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What is in the frames that follow; arrays of shape (records,), in the order of the slices."""

    sequence: int
    epoch: int
    batch: int
    ids: _Ints
    labels: _Ints
    offsets: _Ints
    """Of each image in its frame, in bytes."""
    sizes: _Ints
    """Of each image in bytes."""
    checksums: _Ints
    """Of each record's payload, masked CRC-32C, as the index has it: what was indexed is what has to come."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A request came damaged, so nobody knows what it asked for."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The daemon cannot answer a request."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """How a daemon is: names and numbers."""

    fields: dict[str, Any]


Request: TypeAlias = Hello | Health | Warm | Get
Reply: TypeAlias = Catalog | Warmed | BatchHeader | Refusal | Damaged | Report
