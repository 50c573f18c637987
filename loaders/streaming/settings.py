"""Every argument of the service, stated and checked once: those of the loader and its receiver, and the daemon's."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from loaders.errors import LoaderConfigError
from loaders.shared.daemon.flags import KeyedServeOptions
from loaders.shared.options import Count, RecordOptions, Seconds, whole, whole_or

BatchOrder: TypeAlias = Literal["arrival", "sample", "strict"]
WireFormat: TypeAlias = Literal["raw", "msgpack"]
"""How a batch travels: records as frames of their own, not copied, or all in one msgpack frame."""

LISTEN = "127.0.0.1:5557"
MAX_PREFETCH: Final = 256
_ENDPOINT: Final = re.compile(r"tcp://[^\s/]+:(?P<port>[0-9]{1,5})")


def check_endpoint(endpoint: object) -> None:
    """Raise LoaderConfigError unless this is the address of a daemon."""
    found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise LoaderConfigError(
            f"endpoint={endpoint!r}: expected tcp://HOST:PORT with a port from 1 to 65535, such as tcp://10.0.0.2:5557"
        )


def _path(value: object) -> object:
    if not isinstance(value, str | os.PathLike | None):
        raise ValueError("expected a path, or none")
    return value


class StreamSettings(RecordOptions):
    """The arguments of every loader of records, and of the streaming loader."""

    limit: Count | None = Field(default=None, description="samples after which an epoch ends; None for all")
    verify: bool = Field(
        default=True,
        description="whether the checksum of every record is computed, and not only the one that it states compared "
        "with the index",
    )
    endpoint: Any = Field(
        default=None,
        description="address of the daemon, such as tcp://10.77.0.1:41234; None where `endpoints` is given",
    )
    endpoints: Sequence[Any] | None = Field(
        default=None, description="addresses of several daemons, each with shards of its own"
    )
    keys: Annotated[Any, BeforeValidator(_path)] = Field(
        default=None, description="the client's folder of keys, for daemons with keys; None for daemons without"
    )
    streams: Annotated[int, whole(1, 64)] = Field(default=2, description="connections to each daemon")
    prefetch_batches: Annotated[int | Literal["auto"], whole_or("auto", MAX_PREFETCH)] = Field(
        default="auto",
        description='batches that are requested ahead of each daemon; "auto" is two a stream, 8 if they are small, and '
        "twice the bandwidth-delay product, which is learned",
    )
    order: BatchOrder = Field(
        default="arrival",
        description='"arrival", "sample" for batches of the runs that arrive first, whichever batch they were planned '
        'for, or "strict" for the order of the plan',
    )
    slice_records: Annotated[int, whole(0)] = Field(
        default=8,
        description="neighbouring records in a run; a batch is made of runs. 0 is EMLIO's plan: whole shards, and "
        "batches from as many of them in turn as there are streams",
    )
    shuffle_window: Annotated[int, whole(0)] | None = Field(
        default=None,
        description="records that are shuffled one by one within windows of so many; 0 for none, and None for none "
        "with a warning where the shards were not shuffled when they were made",
    )
    warm_bytes: Annotated[int, whole(0, 4 * 2**30)] = Field(
        default=8 * 2**20,
        description="bytes of padding that open TCP's windows at each daemon's connections before the first batch; "
        "twice the link's bandwidth-delay product is enough",
    )
    wire: WireFormat = Field(default="raw", description='"raw", or "msgpack" as in EMLIO\'s paper')
    timeout_s: Seconds = Field(default=30.0, description="seconds of silence after which a daemon is given up")
    events: Annotated[Any, BeforeValidator(_path)] = Field(
        default=None, description="file to which TimestampLogger's lines are appended; None for no such file"
    )

    def model_post_init(self, context: object) -> None:
        """Check what several arguments say together; raises LoaderConfigError."""
        super().model_post_init(context)
        if self.imbalance:
            raise LoaderConfigError(f"imbalance={self.imbalance}: streaming makes equal shares; leave it out")
        if (self.endpoint is None) == (self.endpoints is None):
            raise LoaderConfigError("endpoint or endpoints: give one of the two")
        for endpoint in self.addresses:
            check_endpoint(endpoint)
        if not self.addresses or len(set(self.addresses)) != len(self.addresses):
            raise LoaderConfigError(f"endpoints={self.endpoints}: expected one or more, each once")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The daemons' addresses."""
        return (self.endpoint,) if self.endpoint is not None else tuple(self.endpoints or ())

    @property
    def window_records(self) -> int:
        """Records of a shuffle window, 0 for none."""
        return 0 if self.shuffle_window is None else self.shuffle_window

    @property
    def stretches(self) -> int:
        """Stretches of a rank's share from which its batches are taken in turn."""
        return self.streams if self.slice_records == 0 else 1

    @property
    def pieces(self) -> int:
        """Equal requests into which a batch is planned that is filled by sample: of at most a run each."""
        if self.order != "sample" or not self.slice_records:
            return 1
        return next(
            pieces
            for pieces in range(1, self.batch_size + 1)
            if self.batch_size % pieces == 0 and self.batch_size // pieces <= self.slice_records
        )


class DaemonOptions(KeyedServeOptions):
    """What a daemon serves, on which address, to whom and how: by CURVE."""

    root: Path = Field(title="DIR", description="shard folder, made by `convert` or `index`")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description=f"address to listen on, * for every IPv4 address; port 0 is any free one (default: {LISTEN})",
    )
    threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        title="N",
        description="threads that send, and as many that read and serialise answers to clients with wire=msgpack, 1 to "
        "64 (default: 1)",
    )
    high_water_mark: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        title="N",
        description="most messages that wait to be sent on a connection, 1 to 1024, within 16 MiB of memory "
        "(default: 4 MiB of messages)",
    )
    bandwidth_gbit: float | None = Field(
        default=None,
        title="GBIT",
        description="bandwidth of the link, in Gbit/s; with --rtt-ms it makes a connection's send buffer as large as "
        "the two need, where TCP would not make it so itself",
    )
    rtt_ms: float | None = Field(default=None, title="MS", description="round-trip time of the link, in ms")
    congestion: str | None = Field(
        default=None,
        title="NAME",
        description="TCP's congestion control of the connections, of those that the kernel has; kernel leaves it the "
        "choice (default: bbr, which keeps a lossy link busy where cubic does not, if the kernel has it and clients "
        "are on other hosts)",
    )
    events: Path | None = Field(
        default=None, title="FILE", description="append a JSON line for every batch that is sent"
    )
