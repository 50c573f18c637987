"""The options of the daemon: flags of `serve`, and keys of the `daemon` section of a loader in an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LISTEN = "127.0.0.1:5557"


class DaemonOptions(BaseModel):
    """What a daemon serves, on which address, to whom and how. A field's title is the value that its flag takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    root: Path = Field(title="DIR", description="shard folder, made by `convert` or `index`")
    listen: str = Field(
        default=LISTEN,
        title="HOST:PORT",
        description=f"address to listen on, * for every IPv4 address; port 0 is any free one (default: {LISTEN})",
    )
    keys: Path | None = Field(
        default=None,
        title="DIR",
        description="the daemon's half of what `keygen` made; only its client is served, and everything is encrypted "
        "and authenticated (CURVE)",
    )
    no_auth: bool = Field(
        default=False,
        description="serve anyone who can reach an address that is not loopback; nothing is encrypted or authenticated",
    )
    threads: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1, title="N", description="threads that move bytes, 1 to 64 (default: 1)"
    )
    serializers: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0,
        title="N",
        description="threads that read and serialise answers to clients with wire=msgpack, up to 64; with 0 the thread "
        "that takes requests does so (default: 0)",
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
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.keys is not None and self.no_auth:
            raise ValueError("--keys and --no-auth exclude each other")
        return self
