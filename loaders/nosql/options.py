"""The options of the daemon: flags of `serve`, and keys of the `daemon` section of a loader in an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loaders.nosql.schema import PORT

LISTEN = f"127.0.0.1:{PORT}"
SERVER: Final = "cassandra"
"""The server that the daemon starts: playbooks/cassandra.sh."""


class DaemonOptions(BaseModel):
    """What a server serves, on which address, to whom and how. A field's title is the value that its flag takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path = Field(title="DIR", description="folder with the tables of a dataset, as `prepare` makes it")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description=f"address to listen on; port 0 is any free one (default: {LISTEN})",
    )
    keys: Path | None = Field(
        default=None,
        title="DIR",
        description="the daemon's half of what `keygen` made; only its client is served, and everything is encrypted "
        "and authenticated (TLS with certificates of both sides, and a password)",
    )
    no_auth: bool = Field(
        default=False,
        description="serve anyone who can reach an address that is not loopback; nothing is encrypted or authenticated",
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
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.keys is not None and self.no_auth:
            raise ValueError("--keys and --no-auth exclude each other")
        return self
