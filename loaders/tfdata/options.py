"""The options of the loader, and of the daemon: flags of `serve`, and keys of the `daemon` section of a loader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from loaders.shared.daemon.flags import ServeOptions
from loaders.shared.options import Count, RecordOptions, Seconds

LISTEN = "127.0.0.1:5050"


class DaemonOptions(ServeOptions):
    """What a daemon serves, on which address and how."""

    root: Path = Field(title="DIR", description="shard folder, as `python -m loaders.streaming convert` makes it")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description="address of the dispatcher, by which clients reach it; the workers listen on the same host at free "
        f"ports; port 0 is any free one (default: {LISTEN})",
    )
    no_auth: bool = Field(
        default=False,
        description="serve anyone who can reach an address that is not loopback: tf.data service authenticates nobody, "
        "and who reaches it has it read any file that this user can read",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        title="N",
        description="tf.data workers, 1 to 64; a client has one request under way at each, so distance needs several "
        "(default: 1)",
    )
    threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2, title="N", description="threads of TensorFlow's operations, 1 to 64 (default: 2)"
    )


class TfDataOptions(RecordOptions):
    """What every loader of records takes, and tf.data service."""

    shuffle_buffer: Count = Field(
        default=1024,
        description="records of a worker from which it draws the next one at random; an epoch begins when it is full",
    )
    interleave: Count = Field(default=4, description="shards that a worker reads in turn, at most")
    max_outstanding_requests: Count | None = Field(
        default=None,
        description="batches that are asked for or wait in the client; the service has one under way at each worker; "
        "None for two for each worker",
    )
    worker_threads: Count = Field(default=2, description="threads of each worker for an epoch")
    timeout_s: Seconds = Field(default=30.0, description="seconds without a batch after which the service is given up")
