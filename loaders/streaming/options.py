"""The options of the daemon: flags of `serve`, and keys of the `daemon` section of a loader in an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from loaders.shared.daemon_flags import flag_of
from loaders.shared.objects.address import SCHEME

LISTEN = "127.0.0.1:5557"


class DaemonOptions(BaseModel):
    """What a daemon serves, on which address, to whom and how. A field's title is the value that its flag takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    root: Path | str = Field(
        title="DIR",
        description="shard folder, made by `convert`; or s3://BUCKET/PREFIX in an object store, made by `upload`",
    )
    links_into: tuple[Path, ...] = Field(
        default=(),
        title="DIR",
        description="folder into which links among the shards may lead, as `index --out` makes them; may be repeated",
    )
    s3_endpoint: str | None = Field(
        default=None,
        title="URL",
        description="of an object store other than Amazon's, such as http://HOST:9000 (default: AWS_ENDPOINT_URL)",
    )
    s3_keys: Path | None = Field(
        default=None,
        title="FILE",
        description="the object store's keys: a credentials file as AWS's tools have it, for its owner alone (default: "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
    )
    s3_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=12.0,
        title="S",
        description="seconds for which a request to an object store out of reach is repeated; less than half of the "
        "loader's timeout_s (default: 12)",
    )
    cache: Path | None = Field(
        default=None, title="DIR", description="folder on a local disk that keeps what came from an object store"
    )
    cache_mb: Annotated[int, Field(ge=1)] = Field(
        default=4096, title="N", description="most MiB of a dataset's records in the cache (default: 4096)"
    )
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
    encrypt: bool = Field(
        default=False,
        description="of older command lines, and changes nothing: --keys alone encrypts everything",
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
        "choice (default: bbr, which keeps a lossy link busy where cubic does not, if the kernel has it and clients are "
        "on other hosts)",
    )
    events: Path | None = Field(
        default=None, title="FILE", description="append a JSON line for every batch that is sent"
    )
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")

    @field_validator("root")
    @classmethod
    def _read_root(cls, root: Path | str) -> Path | str:
        return root if isinstance(root, str) and root.startswith(SCHEME) else Path(root)

    @model_validator(mode="after")
    def _check_objects(self) -> Self:
        if isinstance(self.root, str) and self.cache is None:
            raise ValueError(f"--root {self.root} needs --cache DIR, a folder on a local disk")
        given = self.model_fields_set & {"cache", "cache_mb", "s3_endpoint", "s3_keys", "s3_timeout_s"}
        if isinstance(self.root, Path) and given:
            raise ValueError(f"{flag_of(min(given))} is for --root s3://BUCKET/PREFIX, not for a folder")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.keys is not None and self.no_auth:
            raise ValueError("--keys and --no-auth exclude each other")
        if self.encrypt and self.keys is None:
            raise ValueError("--encrypt needs --keys DIR, which alone encrypts everything")
        return self
