"""Where objects lie: a bucket, a prefix of their names, and the endpoint of the store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from loaders.errors import LoaderConfigError

SCHEME = "s3://"
_EXPECTED = "expected s3://BUCKET/PREFIX, with ?endpoint=http://HOST:PORT for a store other than Amazon's"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = "us-east-1"
"""The region that stores without regions take requests for."""


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A prefix in a bucket of an S3-compatible store."""

    bucket: str
    prefix: str
    """Without slashes around it; "" for the whole bucket."""
    endpoint: str | None
    """URL of the store; None for Amazon's."""
    region: str

    @classmethod
    def parse(
        cls, text: str, endpoint: str | None = None, environment: Mapping[str, str] = os.environ
    ) -> ObjectAddress:
        """Return the address of a text such as s3://BUCKET/PREFIX?endpoint=http://HOST:PORT.

        The endpoint is that of the text, else the given one, else AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL of the
        environment. The region is AWS_REGION or AWS_DEFAULT_REGION of the environment, else us-east-1. Raises
        LoaderConfigError naming the text and its expected form.
        """
        try:
            parts = urlsplit(text)
            query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
        except ValueError as error:
            raise LoaderConfigError(f"{text}: {error}; {_EXPECTED}") from error
        if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc) or query.keys() - {"endpoint"}:
            raise LoaderConfigError(f"{text}: {_EXPECTED}")
        prefix = parts.path.strip("/")
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise LoaderConfigError(f"{text}: empty or relative parts in the prefix; {_EXPECTED}")
        found = query["endpoint"][0] if query else endpoint
        found = found or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None
        if found is not None:
            url = urlsplit(found)
            if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
                # It may have a password before its host.
                shown = found if url.username is None else f"{url.scheme}://***@{url.hostname}"
                raise LoaderConfigError(f"endpoint {shown}: expected http://HOST:PORT or https://HOST:PORT")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _REGION
        return cls(parts.netloc, prefix, found, region)

    def url(self) -> str:
        """Return the URL of the prefix."""
        return SCHEME + "/".join(part for part in (self.bucket, self.prefix) if part)
