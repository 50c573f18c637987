"""MDS shards in an object store: make them of TFRecord shards, and serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from joulefeed.signals import run_program
from loaders.errors import LoaderConfigError
from loaders.mosaic.keys import load_keys
from loaders.mosaic.object_store import ObjectServer, linked_objects
from loaders.mosaic.options import BUCKET, PREFIX, DaemonOptions
from loaders.shared.daemon.command import DaemonCommand, Served, serve_until_end
from loaders.shared.daemon.flags import resolve_one_address


@contextmanager
def _serving(options: DaemonOptions) -> Iterator[Served]:
    if options.keys is None:
        raise LoaderConfigError(
            "--keys: expected the daemon's half of the keys: S3 knows no server without an access key"
        )
    host, port = resolve_one_address(options.listen)
    keys = load_keys(options.keys)
    with linked_objects(options.root) as folder, ObjectServer(keys, folder, host, port=port) as server:
        yield Served({"endpoint": f"s3://{BUCKET}/{PREFIX}?endpoint={server.endpoint}"}, server)


main = DaemonCommand(
    "loaders.mosaic",
    __doc__,
    DaemonOptions,
    lambda options: serve_until_end(_serving(options), until_eof=options.until_eof),
    serves="serve a folder that `prepare` made with MinIO",
    prepares="make MDS shards of a folder of TFRecord shards, with mosaicml-streaming",
    keys="They are an access key of S3; only its owner can read it.",
).main

if __name__ == "__main__":
    run_program(main)
