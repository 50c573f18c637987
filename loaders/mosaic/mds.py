"""Makes what the daemon serves of TFRecord shards: MDS shards, in the folder of an object store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loaders.errors import ShardError
from loaders.mosaic.keys import ObjectKeys, load_keys, make_keys
from loaders.mosaic.library import import_streaming
from loaders.mosaic.object_store import ObjectServer
from loaders.mosaic.options import BUCKET, INDEX, PREFIX, REGION
from loaders.records.shards.index import ShardSet

FORM: Final = "mds-1"
"""Name and version of the form: sizes of shards, columns, and how the folder is laid out."""
COLUMNS: Final = {"id": "int", "label": "int", "image": "int", "image_size": "int", "record": "bytes"}
"""A sample: its TFRecord record as it is in the shard, and where the image is in it."""
_SHARDS: Final = 32
"""As many at least, so that workers have something to download side by side."""
_MIN_BYTES: Final = 2**22
_MAX_BYTES: Final = 2**26
"""Size of a shard: what MDSWriter makes by default."""


def prepare(shards: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write a shard folder's records, in their order, as MDS shards into the folder of an object store.

    Args:
        shards: folder of TFRecord shards.
        folder: an empty folder, which becomes what `serve --root` takes.
        progress: is called with how many records are done, and how many there are.

    Raises ShardError naming what is wrong with the shards, LoaderError where the store does not start.
    """
    source = ShardSet.open(shards)
    with tempfile.TemporaryDirectory(prefix=".mds-", dir=folder) as name:
        temporary = Path(name)
        _write(source, temporary / PREFIX, progress)
        daemon, _ = make_keys(temporary / "keys")
        keys = load_keys(daemon)
        with ObjectServer(keys, folder) as server:
            _upload(temporary / PREFIX, server.endpoint, keys)


def _write(source: ShardSet, out: Path, progress: Callable[[int, int], None]) -> None:
    import_streaming()
    from streaming.base.format import MDSWriter

    size = min(max(source.nbytes // _SHARDS, _MIN_BYTES), _MAX_BYTES)
    done, total = 0, source.samples
    with MDSWriter(out=str(out), columns=COLUMNS, size_limit=size, progress_bar=False) as writer:
        for shard in source.shards:
            with shard.path.open("rb") as file:
                for row in shard.records:
                    file.seek(int(row["offset"]))
                    record = file.read(int(row["size"]))
                    if len(record) != row["size"]:
                        raise ShardError(f"{shard.path}: ends before record {row['id']}; convert the data again")
                    fields = {name: int(row[name]) for name in ("id", "label", "image", "image_size")}
                    writer.write({**fields, "record": record})
                    done += 1
                    if done % 1000 == 0 or done == total:
                        progress(done, total)


def _upload(folder: Path, endpoint: str, keys: ObjectKeys) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
    )
    client.create_bucket(Bucket=BUCKET)
    # The index comes last: without it nothing is served.
    for path in sorted(folder.iterdir(), key=lambda path: path.name == INDEX):
        client.upload_file(os.fspath(path), BUCKET, f"{PREFIX}/{path.name}")
        path.unlink()  # there is room for one copy
