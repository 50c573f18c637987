"""The objects below one prefix: read by ranges, written and removed, with errors that name the object."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from loaders.errors import LoaderConfigError, ObjectStoreError
from loaders.shared.objects.address import ObjectAddress
from loaders.shared.objects.keys import ObjectKeys

if TYPE_CHECKING:
    from obstore import GetOptions

PART_BYTES = 8 * 2**20
"""Bytes of a part of an upload in parts, on which an object's ETag depends."""
_FIRST_BACKOFF_S, _MAX_BACKOFF_S, _CONNECT_S = 0.1, 1.0, 5.0
_MANY = 10_000
"""Retries are limited by time, not by number."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_UNTRUSTED = re.compile(r"InvalidCertificate\(\s*(\w+)")


class MissingObjectError(ObjectStoreError):
    """An object, or its bucket, does not exist."""

    is_bucket = False
    """Whether the bucket is missing."""


class ChangedObjectError(ObjectStoreError):
    """An object is another one than it was."""


class UnreachableStoreError(ObjectStoreError):
    """A store does not answer, or not to the end."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says about an object."""

    nbytes: int
    etag: str
    """Changes with the content; with stores that have none, the time of the last change."""
    is_tag: bool
    """Whether it is an ETag, which a request can be conditional on."""


class Bucket:
    """The objects below one prefix of a bucket; threads may share it.

    A request is repeated, with growing pauses, while the store cannot be reached or answers with a server error.
    """

    def __init__(self, address: ObjectAddress, keys: ObjectKeys, *, timeout_s: float) -> None:
        """Connect to nothing yet; a request fails after `timeout_s` seconds.

        Raises LoaderConfigError where the client's package, obstore, is not installed.
        """
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise LoaderConfigError(
                f"{address.url()}: obstore is not installed: `pip install joulefeed[s3]`"
            ) from error
        self._obs = obstore
        self.address = address
        self._timeout_s = timeout_s
        endpoint: dict[str, str] = {} if address.endpoint is None else {"endpoint": address.endpoint}
        if keys.session_token is not None:
            endpoint["session_token"] = keys.session_token
        self._store = S3Store(
            address.bucket,
            prefix=address.prefix or None,
            region=address.region,
            access_key_id=keys.access_key,
            secret_access_key=keys.secret_key,
            client_options={
                "allow_http": (address.endpoint or "").startswith("http://"),
                "timeout": timedelta(seconds=timeout_s),
                "connect_timeout": timedelta(seconds=min(_CONNECT_S, timeout_s)),
            },
            retry_config={
                "max_retries": _MANY,
                "retry_timeout": timedelta(seconds=timeout_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=_FIRST_BACKOFF_S),
                    "max_backoff": timedelta(seconds=_MAX_BACKOFF_S),
                    "base": 2,
                },
            },
            **endpoint,  # type: ignore[arg-type]
        )

    def info(self, name: str) -> ObjectInfo:
        """Return the size and the ETag of an object; raises ObjectStoreError."""
        with self._errors(name):
            found = self._obs.head(self._store, name)
        etag = found["e_tag"]
        return ObjectInfo(found["size"], etag or found["last_modified"].isoformat(), etag is not None)

    def read(self, name: str) -> tuple[memoryview, str]:
        """Return a whole object and its ETag, "" where the store has none; raises ObjectStoreError."""
        with self._errors(name):
            result = self._obs.get(self._store, name)
            return memoryview(result.bytes()), result.meta["e_tag"] or ""

    def read_range(self, name: str, info: ObjectInfo, start: int, end: int) -> memoryview:
        """Return the bytes of an object from `start` to `end`.

        Raises ChangedObjectError where it is not the object of `info` any more, else ObjectStoreError.
        """
        options: GetOptions = {"range": (start, end)}
        if info.is_tag:
            options["if_match"] = info.etag
        deadline, pause_s = time.monotonic() + self._timeout_s, _FIRST_BACKOFF_S
        while True:
            try:
                with self._errors(name):
                    result = self._obs.get(self._store, name, options=options)
                    data, nbytes = memoryview(result.bytes()), result.meta["size"]
                break
            except UnreachableStoreError:
                # The client repeats requests, but not one of which the answer ends early.
                if time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_BACKOFF_S)
        if len(data) != end - start or nbytes != info.nbytes:
            raise ChangedObjectError(
                f"{self.address.describe(name)}: has {nbytes} bytes instead of {info.nbytes}; restore it, or upload "
                "the shards again and restart the daemon"
            )
        return data

    def write(self, name: str, content: bytes | Path) -> None:
        """Write an object, in parts of PART_BYTES where it is longer; raises ObjectStoreError."""
        with self._errors(name):
            self._obs.put(self._store, name, content, chunk_size=PART_BYTES, max_concurrency=4)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there; raises ObjectStoreError."""
        with self._errors(name):
            self._obs.delete(self._store, name)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        from obstore import exceptions

        where, endpoint = self.address.describe(name), self.address.endpoint or "Amazon S3"
        try:
            yield
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                missing = MissingObjectError(f"{where}: the bucket does not exist; create it, or correct its name")
                missing.is_bucket = True
                raise missing from error
            raise MissingObjectError(f"{where} does not exist; upload it again, or correct the prefix") from error
        except exceptions.PreconditionError as error:
            raise ChangedObjectError(
                f"{where} was changed since the daemon opened it; restart the daemon, and start the epoch again"
            ) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise ObjectStoreError(
                f"{where}: the store refuses these keys ({_code(error) or 'HTTP 403'}); check the access key, its "
                "secret and its rights to the bucket"
            ) from error
        except exceptions.BaseError as error:
            if code := _code(error):
                raise ObjectStoreError(
                    f"{where}: the store answers {code}; check the bucket, the endpoint, and the region "
                    f"(AWS_REGION, now {self.address.region})"
                ) from error
            if (untrusted := _UNTRUSTED.search(str(error))) is not None:
                raise ObjectStoreError(
                    f"{where}: the certificate of {endpoint} is not accepted ({untrusted.group(1)}); SSL_CERT_FILE "
                    "names a file with the authorities that are trusted"
                ) from error
            reason = str(error).partition("\n")[0].rpartition(" - ")[2].strip()
            raise UnreachableStoreError(
                f"{where}: no whole answer within {self._timeout_s:g} s ({reason}); check that {endpoint} runs and "
                "can be reached"
            ) from error


def _code(error: Exception) -> str:
    """Return the error code of a store's answer, "" for none."""
    found = _CODE.search(str(error))
    return found.group(1) if found else ""
