"""The options of the daemon, and the address by which a loader finds what it serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from loaders.errors import LoaderConfigError
from loaders.shared.objects.address import ObjectAddress

ENVIRONMENT: Final = "mosaic"
"""The environment in which the daemon runs and shards are made: playbooks/mosaic.sh."""
SERVER: Final = "minio"
"""The server that the daemon starts: playbooks/minio.sh."""
BUCKET: Final = "joulefeed"
PREFIX: Final = "mds"
INDEX: Final = "index.json"
"""Name of the object that lists the shards."""
_EXAMPLE: Final = "s3://BUCKET/PREFIX?endpoint=http://HOST:PORT"


class DaemonOptions(BaseModel):
    """What a daemon serves, on which address and to whom. A field's title is the value that its flag takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path = Field(title="DIR", description="folder that `prepare` made")
    listen: str = Field(
        default="127.0.0.1:0", title="HOST:PORT", description="address to listen on; port 0 is any free one"
    )
    keys: Path | None = Field(
        default=None, title="DIR", description="the daemon's half of the keys; S3 knows no server without an access key"
    )
    until_eof: bool = Field(default=False, description="stop as well when standard input ends")


@dataclass(frozen=True, slots=True)
class Remote:
    """Where MDS shards are."""

    url: str
    """As StreamingDataset takes it: s3://BUCKET/PREFIX."""
    endpoint: str
    """URL of the S3 server."""
    region: str
    """That requests are signed for."""

    @classmethod
    def parse(cls, endpoint: str) -> Remote:
        """Return the parts of an endpoint, with the region as `ObjectAddress` has it.

        Raises LoaderConfigError for one of another form.
        """
        if not isinstance(endpoint, str):
            raise LoaderConfigError(f"endpoint={endpoint!r}: expected {_EXAMPLE}")
        found = ObjectAddress.parse(endpoint)
        if found.endpoint is None:
            raise LoaderConfigError(f"endpoint={endpoint}: expected {_EXAMPLE}")
        remote = cls(found.url(), found.endpoint, found.region)
        try:
            remote.address  # noqa: B018 - the port is read
        except ValueError as error:
            raise LoaderConfigError(f"endpoint={endpoint}: {error}; expected {_EXAMPLE}") from error
        return remote

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self.endpoint)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
