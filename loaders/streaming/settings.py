"""How batches are fetched from daemons: stated and checked once, for the loader and all parts of the receiver."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from loaders.arguments import as_whole, check_choice, check_seconds, check_whole
from loaders.errors import LoaderConfigError

BatchOrder: TypeAlias = Literal["arrival", "sample", "strict"]
WireFormat: TypeAlias = Literal["raw", "msgpack"]
"""How a batch travels: records as frames of their own, not copied, or all in one msgpack frame."""

MAX_PREFETCH: Final = 256
_MAX_STREAMS: Final = 64
_MAX_WARM_BYTES: Final = 4 * 2**30
_ENDPOINT: Final = re.compile(r"tcp://[^\s/]+:(?P<port>[0-9]{1,5})")


def check_endpoint(endpoint: object) -> None:
    """Raise LoaderConfigError unless this is the address of a daemon."""
    found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise LoaderConfigError(
            f"endpoint={endpoint!r}: expected tcp://HOST:PORT with a port from 1 to 65535, such as tcp://10.0.0.2:5557"
        )


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How batches are planned and fetched; raises LoaderConfigError for a value out of range.

    Args:
        endpoint: address of the daemon, such as tcp://10.77.0.1:41234; None where `endpoints` is given (default None).
        endpoints: addresses of several daemons, each with shards of its own (default None).
        keys: the client's folder of keys, for daemons with keys; None for daemons without (default None).
        streams: connections to each daemon (default 2).
        prefetch_batches: batches that are requested ahead of each daemon; "auto" is two a stream, 8 if they are small,
            and twice the bandwidth-delay product, which is learned (default "auto").
        order: "arrival", "sample" for batches of the runs that arrive first, whichever batch they were planned for, or
            "strict" for the order of the plan (default "arrival").
        slice_records: neighbouring records in a run; a batch is made of runs. 0 is EMLIO's plan: whole shards, and
            batches from as many of them in turn as there are streams (default 8).
        shuffle_window: records that are shuffled one by one within windows of so many; 0 for none, and None for none
            with a warning where the shards were not shuffled when they were made (default None).
        warm_bytes: bytes of padding that open TCP's windows at each daemon's connections before the first batch; twice
            the link's bandwidth-delay product is enough (default 8 MiB).
        wire: "raw", or "msgpack" as in EMLIO's paper (default "raw").
        timeout_s: seconds of silence after which a daemon is given up (default 30).
        verify: whether the checksum of every record is computed, and not only the one that it states compared with the
            index (default True).
    """

    endpoint: str | None = None
    endpoints: Sequence[str] | None = None
    keys: Path | str | None = None
    streams: int = 2
    prefetch_batches: int | Literal["auto"] = "auto"
    order: BatchOrder = "arrival"
    slice_records: int = 8
    shuffle_window: int | None = None
    warm_bytes: int = 8 * 2**20
    wire: WireFormat = "raw"
    timeout_s: float = 30.0
    verify: bool = True

    def __post_init__(self) -> None:
        if (self.endpoint is None) == (self.endpoints is None):
            raise LoaderConfigError("endpoint or endpoints: give one of the two")
        for endpoint in self.addresses:
            check_endpoint(endpoint)
        if not self.addresses or len(set(self.addresses)) != len(self.addresses):
            raise LoaderConfigError(f"endpoints={self.endpoints}: expected one or more, each once")
        if not isinstance(self.keys, str | os.PathLike | None):
            raise LoaderConfigError(f"keys={self.keys!r}: expected a path, or none")
        check_whole("streams", self.streams, 1, _MAX_STREAMS)
        if self.prefetch_batches != "auto" and as_whole(self.prefetch_batches, 1, MAX_PREFETCH) is None:
            raise LoaderConfigError(
                f"prefetch_batches={self.prefetch_batches!r}: expected 1 to {MAX_PREFETCH}, or auto"
            )
        check_choice("order", self.order, BatchOrder)
        check_whole("slice_records", self.slice_records, 0)
        check_whole("shuffle_window", self.window_records, 0)
        check_whole("warm_bytes", self.warm_bytes, 0, _MAX_WARM_BYTES)
        check_choice("wire", self.wire, WireFormat)
        check_seconds("timeout_s", self.timeout_s)
        if not isinstance(self.verify, bool):
            raise LoaderConfigError(f"verify={self.verify!r}: expected true or false")

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

    def count_pieces(self, batch_size: int) -> int:
        """Return into how many equal requests a batch is planned that is filled by sample: of at most a run each."""
        if self.order != "sample" or not self.slice_records:
            return 1
        return next(
            pieces
            for pieces in range(1, batch_size + 1)
            if batch_size % pieces == 0 and batch_size // pieces <= self.slice_records
        )
