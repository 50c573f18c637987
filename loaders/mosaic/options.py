"""The options of the loader and of the daemon, and the address by which a loader finds what it serves."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field

from loaders.errors import LoaderConfigError
from loaders.shared.daemon.flags import ServeOptions
from loaders.shared.options import Count, RecordOptions, Seconds

ENVIRONMENT: Final = "mosaic"
"""The environment in which the daemon runs and shards are made: playbooks/mosaic.sh."""
SERVER: Final = "minio"
"""The server that the daemon starts: playbooks/minio.sh."""
BUCKET: Final = "joulefeed"
PREFIX: Final = "mds"
INDEX: Final = "index.json"
"""Name of the object that lists the shards."""
_EXAMPLE: Final = "s3://BUCKET/PREFIX?endpoint=http://HOST:PORT"
_FORM: Final = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<prefix>[^?#]+?)/?(\?endpoint=(?P<server>[^&#]+))?"
)
REGION: Final = "us-east-1"
"""The region that stores without regions, such as MinIO, take requests for."""
_SECRET: Final = re.compile(r"//[^/@]*@")


class DaemonOptions(ServeOptions):
    """What a daemon serves, on which address and to whom."""

    root: Path = Field(title="DIR", description="folder that `prepare` made")
    keys: Path | None = Field(
        default=None, title="DIR", description="the daemon's half of the keys; S3 knows no server without an access key"
    )


@dataclass(frozen=True, slots=True)
class Remote:
    """Where MDS shards are."""

    url: str
    """As StreamingDataset takes it: s3://BUCKET/PREFIX."""
    endpoint: str
    """URL of the S3 server."""
    region: str
    """That requests are signed for."""
    address: tuple[str, int]
    """Host and port of the server."""

    @classmethod
    def parse(cls, endpoint: str) -> Remote:
        """Return the parts of s3://BUCKET/PREFIX?endpoint=http://HOST:PORT.

        Without an endpoint in the text it is AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL of the environment. The region is
        AWS_REGION or AWS_DEFAULT_REGION, else us-east-1. Raises LoaderConfigError for a text of another form.
        """
        found = _FORM.fullmatch(endpoint) if isinstance(endpoint, str) else None
        # It may have a password before its host.
        shown = _SECRET.sub("//***@", str(endpoint))
        if found is None or any(part in ("", ".", "..") for part in found["prefix"].split("/")):
            raise LoaderConfigError(f"endpoint={shown}: expected {_EXAMPLE}")
        server = found["server"] or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        try:
            parts = urlsplit(unquote(server))
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise LoaderConfigError(f"endpoint={shown}: {error}; expected {_EXAMPLE}") from error
        if parts.scheme not in ("http", "https") or host is None or parts.username or parts.query:
            server = _SECRET.sub("//***@", server)
            raise LoaderConfigError(f"endpoint={shown}: its server is {server!r}, expected http://HOST:PORT")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or REGION
        return cls(f"s3://{found['bucket']}/{found['prefix']}", parts.geturl(), region, (host, port))


class MosaicOptions(RecordOptions):
    """What every loader of records takes, and MosaicML Streaming."""

    keys: Path | str | None = Field(
        default=None,
        description="folder or file of the access key; None takes AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )
    num_workers: Count = Field(default=8, description="worker processes, each of which downloads one shard at a time")
    prefetch_factor: Count = Field(default=2, description="batches that each worker has ready")
    predownload: Count | None = Field(
        default=None,
        description="samples that each worker downloads shards for ahead; None for the library's, 8 batches",
    )
    shuffle: bool = Field(default=True, description="whether samples are shuffled")
    shuffle_algo: Literal["py1e", "py1br", "py1s", "py2s", "naive"] = Field(
        default="py1e", description="the library's algorithm"
    )
    shuffle_block_size: Count | None = Field(
        default=None, description="samples within which py1e shuffles; None for those of 10 shards"
    )
    num_canonical_nodes: Count | None = Field(
        default=None, description="the library's number of sample buckets; None for its own, 1"
    )
    cache_limit: str | None = Field(
        default=None, description="most bytes of downloaded shards on disk, such as 2gb; None for those of the dataset"
    )
    download_retry: Count = Field(default=2, description="times that the library tries a download")
    timeout_s: Seconds = Field(default=30.0, description="seconds of silence after which the object store is given up")
