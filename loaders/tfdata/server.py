"""TensorFlow's dispatcher and workers in this process, listening on one address alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import psutil

from joulefeed.native import compiled
from joulefeed.server import check_free, join_address
from loaders.errors import LoaderConfigError, StreamError
from loaders.records.shards.index import ShardSet, check_content
from loaders.tfdata.dataset import CATALOG_ID, TfDataCatalog
from loaders.tfdata.tensorflow import load_tensorflow

HOST_VARIABLE: Final = "TFDATA_LISTEN_HOST"
"""Environment variable with the address on which the library of bind_address.c has the process listen."""
_SOURCE: Final = Path(__file__).with_name("bind_address.c")
_PRELOAD: Final = "LD_PRELOAD"
_DESCRIPTORS: Final = "/proc/self/fd/"
_TENSORFLOW: Final = {"TF_USE_LEGACY_KERAS": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Variables with which the import of TensorFlow leaves out Keras, a third of its CPU time, and is silent."""
_CHECK_MS: Final = 2_000
"""How often the dispatcher looks for jobs without a client, how long one may be without, and how often a worker asks
which of its jobs are over: their threads, and records that were not fetched, are in its memory until then."""


def confine(host: str) -> None:
    """Start this program again so that what it binds to every address is bound to `host` alone; once in a process.

    tf.data service binds 0.0.0.0 and has no setting for another address.

    Raises LoaderConfigError where the host has no C compiler.
    """
    ours, _, others = os.environ.get(_PRELOAD, "").partition(":")
    if os.environ.get(HOST_VARIABLE) == host and ours.startswith(_DESCRIPTORS):
        # Programs that this one may start listen where they want.
        del os.environ[_PRELOAD]
        if others:
            os.environ[_PRELOAD] = others
        return
    try:
        with compiled(_SOURCE) as path:
            library = path.read_bytes()
    except OSError as error:
        raise LoaderConfigError(
            f"tf.data service would listen on every address of this host, and what keeps it on {host} is compiled: "
            f"{error}; install a C compiler (gcc and libc6-dev)"
        ) from error
    file = os.memfd_create("bind-address")
    os.write(file, library)
    os.set_inheritable(file, True)
    preload = ":".join(filter(None, (f"{_DESCRIPTORS}{file}", os.environ.get(_PRELOAD))))
    argv = [sys.executable, "-m", "loaders.tfdata", *sys.argv[1:]]
    environment = {**_TENSORFLOW, **os.environ, HOST_VARIABLE: host, _PRELOAD: preload}
    os.execve(sys.executable, argv, environment)  # noqa: S606 - the same program, with another environment


class Service:
    """A dispatcher with its workers, which serve the shards of a folder until the process ends."""

    def __init__(self, root: Path, host: str, port: int, *, workers: int, threads: int) -> None:
        """Check the shards and start the servers.

        Raises ShardError for shards that do not fit their indexes, StreamError for an address that is in use or where
        the servers listen elsewhere.
        """
        shards = ShardSet.open(root)
        check_content(shards.shards)
        # gRPC shares a port that another of its servers listens on (SO_REUSEPORT), and clients reach either.
        check_free(host, port, StreamError)
        tensorflow = load_tensorflow(threads)
        service = tensorflow.data.experimental.service
        self.samples, self.nbytes = shards.samples, shards.nbytes
        config = service.DispatcherConfig(port=port, job_gc_check_interval_ms=_CHECK_MS, job_gc_timeout_ms=_CHECK_MS)
        self._dispatcher = service.DispatchServer(config)
        address = join_address(host, _port_of(self._dispatcher))
        self.endpoint = f"grpc://{address}"
        self._workers = [
            service.WorkerServer(
                service.WorkerConfig(address, join_address(host, "%port%"), heartbeat_interval_ms=_CHECK_MS)
            )
            for _ in range(workers)
        ]
        _check_listeners(host)
        self._catalog = TfDataCatalog.of(shards, [join_address(host, _port_of(worker)) for worker in self._workers])
        self._register(tensorflow)

    def _register(self, tensorflow: Any) -> None:
        dataset = tensorflow.data.Dataset.from_tensors(self._catalog.to_json())
        tensorflow.data.experimental.service.register_dataset(
            self.endpoint, dataset, compression=None, dataset_id=CATALOG_ID
        )

    def describe(self) -> Mapping[str, object]:
        """Return what the line says by which the daemon is ready."""
        return {
            "endpoint": self.endpoint,
            "samples": self.samples,
            "bytes": self.nbytes,
            "workers": self._catalog.workers,
        }


def _port_of(server: Any) -> int:
    # Neither kind of server has it as a public attribute; `target` is the dispatcher's only.
    return int(server._server.bound_port())


def _check_listeners(host: str) -> None:
    """Raise StreamError where a socket of this process listens on another address than `host`."""
    connections = psutil.Process().net_connections("tcp")
    heard = {_plain(each.laddr[0]) for each in connections if each.status == psutil.CONN_LISTEN}
    if heard != {_plain(host)}:
        raise StreamError(
            f"tf.data service listens on {', '.join(sorted(heard)) or 'no address'}, expected {host} alone: "
            f"{_PRELOAD} has no effect here, so it is not started; use another Python, or another loader"
        )


def _plain(host: str) -> str:
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
