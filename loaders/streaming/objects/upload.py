"""Copies a shard folder to an object store, the manifest last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from loaders.errors import ObjectStoreError, ShardError
from loaders.records.shards.index import MANIFEST, ShardSet, index_path
from loaders.shared.objects.bucket import PART_BYTES, Bucket, MissingObjectError

_FURTHER = ("classes.json", "skipped.json")
"""Files that a shard folder may have beside its shards."""
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload did."""

    files: int
    """Files of the folder, all of which are in the store now."""
    sent: int
    """Those of them that were not there before."""
    sent_bytes: int


def upload(
    folder: Path, bucket: Bucket, *, replace: bool = False, progress: Callable[[int, int], None] | None = None
) -> Uploaded:
    """Copy a shard folder to the bucket's prefix; what is there already, by size and ETag, is not sent again.

    The manifest is written when all else is there, so that a half uploaded folder cannot be served. `replace` allows to
    replace other shards, whose manifest goes first. `progress` is called with the files done and in all.

    Raises ShardError where the folder is none, ObjectStoreError naming the object that cannot be written.
    """
    opened = ShardSet.open(folder.absolute())
    paths = [shard.path for shard in opened.shards]
    files = [*paths, *map(index_path, paths), *(folder / name for name in _FURTHER if (folder / name).exists())]
    manifest = (folder / MANIFEST).read_bytes()
    there = _read_manifest(bucket)
    if there is not None and there != manifest:
        if not replace:
            raise ObjectStoreError(
                f"{bucket.address.describe(MANIFEST)}: other shards are there; choose another prefix, or give --replace"
            )
        bucket.remove(MANIFEST)
    sent = sent_bytes = 0
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        futures = [threads.submit(_send, bucket, path) for path in files]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                sent += future.result() > 0
                sent_bytes += future.result()
                if progress is not None:
                    progress(done, len(files) + 1)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    if there != manifest:
        bucket.write(MANIFEST, manifest)
        sent, sent_bytes = sent + 1, sent_bytes + len(manifest)
        _remove_old(bucket, there, {path.name for path in files})
    if progress is not None:
        progress(len(files) + 1, len(files) + 1)
    return Uploaded(len(files) + 1, sent, sent_bytes)


def _read_manifest(bucket: Bucket) -> bytes | None:
    try:
        return bytes(bucket.read(MANIFEST)[0])
    except MissingObjectError as error:
        if error.is_bucket:
            raise
        return None


def _send(bucket: Bucket, path: Path) -> int:
    """Write a file unless it is there; return the bytes that were sent."""
    nbytes = path.stat().st_size
    try:
        info = bucket.info(path.name)
        if info.nbytes == nbytes and info.etag.strip('"') == _etag(path):
            return 0
    except MissingObjectError:
        pass
    try:
        bucket.write(path.name, path)
    except OSError as error:
        raise ShardError(f"{path} cannot be read: {error.strerror}") from error
    return nbytes


def _etag(path: Path) -> str:
    """Return the ETag that S3 gives a file: the MD5 of it, or of the MD5s of its parts and their number.

    See "Checking object integrity" of the Amazon S3 User Guide; stores that encrypt by keys of their own differ.
    """
    digests = []
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            digests.append(hashlib.md5(part, usedforsecurity=False))
    if len(digests) <= 1:
        return digests[0].hexdigest() if digests else ""
    whole = hashlib.md5(b"".join(digest.digest() for digest in digests), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"


def _remove_old(bucket: Bucket, manifest: bytes | None, kept: set[str]) -> None:
    """Remove the shards of a manifest that was replaced."""
    if manifest is None:
        return
    try:
        names = [Path(str(entry["name"])) for entry in json.loads(manifest)["shards"]]
    except (ValueError, KeyError, TypeError):
        return
    for path in names:
        for name in {path.name, index_path(path).name} - kept:
            bucket.remove(name)
