"""The options of the loader, and of the daemon: flags of `serve`, and keys of the `daemon` section of a loader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from loaders.nosql.schema import PORT
from loaders.shared.daemon.flags import KeyedServeOptions
from loaders.shared.options import Count, RecordOptions, Seconds, whole

LISTEN = f"127.0.0.1:{PORT}"
_MAX_IN_FLIGHT: Final = 32_000
"""The protocol numbers the requests of a connection with 15 bits."""
SERVER: Final = "cassandra"
"""The server that the daemon starts: playbooks/cassandra.sh."""


class DaemonOptions(KeyedServeOptions):
    """What a server serves, on which address, to whom and how: by TLS, certificates of both sides and a password."""

    root: Path = Field(title="DIR", description="folder with the tables of a dataset, as `prepare` makes it")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description=f"address to listen on; port 0 is any free one (default: {LISTEN})",
    )
    heap_mb: Annotated[int, Field(ge=128, le=65_536)] = Field(
        default=1024,
        title="MB",
        description="Java's heap, in MiB; the server takes some 300 MiB more, and as much again for buffers under load "
        "(default: 1024)",
    )
    disk_access: Literal["mmap", "mmap_index_only", "standard"] = Field(
        default="mmap_index_only",
        title="MODE",
        description="how files are read, mmap, mmap_index_only or standard; with mmap each page fault reads as much "
        "as the disk's readahead (default: mmap_index_only)",
    )
    start_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        default=120.0, title="S", description="seconds that the server may take to be ready (default: 120)"
    )


class NoSQLOptions(RecordOptions):
    """What every loader of records takes, and the client of the database."""

    keys: Path | str | None = Field(
        default=None, description="the client's folder of keys, for a server with keys; None for one without"
    )
    connections: Annotated[int, whole(1, 256)] = Field(default=4, description="connections to each host")
    in_flight: Annotated[int, whole(1, _MAX_IN_FLIGHT)] = Field(
        default=1024, description="requests under way of each connection"
    )
    prefetch_batches: Count = Field(
        default=16,
        description="batches that are under way or wait for the consumer; together with `batch_size` it has to cover "
        "the bandwidth-delay product",
    )
    out_of_order: bool = Field(
        default=True,
        description="whether each row that arrives takes the next slot of the oldest open batch, so that a slow "
        "connection delays no batch; false keeps the order of the epoch",
    )
    slow_start: Annotated[int, whole(0)] = Field(
        default=4,
        description="samples taken for each one that is asked for besides, so that 4 asks for 5 with 4 taken, from as "
        "many batches up to `prefetch_batches`; 0 asks for all at once",
    )
    across_epochs: bool = Field(
        default=False,
        description="whether rows of the next epoch are asked for once all of this one were, so that the prefetch is "
        "full from one epoch to the next; an epoch then brings the first rows of the next one, and not its own",
    )
    retries: Annotated[int, whole(0)] = Field(
        default=5,
        description="how often a row is asked for again after the database answered with an error; after the loss of a "
        "connection it is asked for again until `timeout_s`",
    )
    timeout_s: Seconds = Field(
        default=30.0, description="seconds without any row after which the epoch ends with an error"
    )
    events: Path | str | None = Field(
        default=None, description="file to which ArrivalLog's lines of each connection are appended"
    )

    def depth(self, taken: int) -> int:
        """Return how many samples may be under way or waiting once so many were taken."""
        full = self.prefetch_batches * self.batch_size
        return min(full, self.slow_start * self.batch_size + taken // self.slow_start) if self.slow_start else full
