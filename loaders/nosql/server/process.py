"""A Cassandra server that is ready, and that ends with its parent."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from signal import SIGTERM
from typing import Final

from joulefeed.server import ServerProcess, find_free_port
from loaders.errors import LoaderConfigError, StreamError
from loaders.nosql.keys import USER, load_daemon_keys
from loaders.nosql.server.configuration import DiskAccess, ServerConfiguration
from loaders.nosql.server.installation import DatabaseServerError, server_command
from loaders.nosql.session import open_session

_FIRST_PASSWORD: Final = "cassandra"  # noqa: S105 - known to all, and changed before the server is ready
_OPTIONS: Final = bytes.fromhex("040000000500000000")
"""The frame OPTIONS of the native protocol, version 4, which a server answers before anybody has logged in."""
_SUPPORTED: Final = 6
_PROBE_S: Final = 2.0
_DRAIN_S: Final = 120.0
_DRAINED: Final = (0, 128 + SIGTERM)
"""Exit statuses of a Java that has written its tables."""


class CassandraServer(ServerProcess):
    """A server with one node, which takes queries on one address; its other port is on loopback."""

    _name = "Cassandra"
    _error = DatabaseServerError
    _taken_words = ("Address already in use", "in use by another process")

    def __init__(
        self,
        home: Path,
        host: str = "127.0.0.1",
        *,
        port: int = 0,
        keys: Path | None = None,
        heap_mb: int = 1024,
        disk_access: DiskAccess = "mmap_index_only",
        removes_home: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        """Start it and wait until it answers.

        Args:
            home: folder below which it stores everything, with the tables in `data`; made where it is missing.
            host: numeric address that takes queries (default: 127.0.0.1).
            port: the port there (default: any free one).
            keys: the daemon's half of what `make_keys` made (default: nothing is encrypted or authenticated).
            heap_mb: Java's heap, in MiB (default: 1024).
            disk_access: how files are read (default: mmap_index_only).
            removes_home: whether `home` is removed at the end, also when this process is killed (default: False). Such
                a server is killed at the end; another one writes everything into its tables first.
            timeout_s: how long it may take to be ready, in s (default: 120).

        Raises DatabaseServerError saying why it did not start, LoaderConfigError for keys that cannot be used, and for
        an address that no client could reach.
        """
        self._home, self._is_kept = home.absolute(), not removes_home
        self._keys, self._heap_mb, self._disk_access = keys and keys.absolute(), heap_mb, disk_access
        self._login = None if keys is None else load_daemon_keys(keys)
        with suppress(ValueError):
            if ip_address(host).is_unspecified:
                raise LoaderConfigError(f"{host}: Cassandra announces one address to its clients; name that one")
        super().__init__(
            host,
            port=port,
            log=self._home / "log",
            removes=() if self._is_kept else (self._home,),
            end_s=_DRAIN_S if self._is_kept else 0.0,
            timeout_s=timeout_s,
        )

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            # Its next start reads the log of what it has stored.
            self.stop(end_s=0.0)
        status = self.stop()
        self.close()
        if error[0] is None and self._is_kept and status not in _DRAINED:
            raise DatabaseServerError(
                f"Cassandra at {self.address} ended before its tables were written ({self.describe_end()}); "
                f"{self._home} has the log of what it stored, from which its next start goes on"
            )

    def _command(self) -> list[str]:
        configuration = ServerConfiguration(
            home=self._home,
            temporary=self.temporary,
            host=self.host,
            port=self.port,
            storage_port=find_free_port(error=DatabaseServerError),
            keys=self._keys,
            heap_mb=self._heap_mb,
            disk_access=self._disk_access,
        )
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            configuration.write()
        except OSError as error:
            raise DatabaseServerError(
                f"{error.filename or self._home}: {error.strerror}: expected a folder that the server can write"
            ) from error
        return server_command(configuration.java_options())

    def _is_ready(self) -> bool:
        """Return whether it answers, with the clients' password where it has keys."""
        try:
            with socket.create_connection((self.host, self.port), _PROBE_S) as connection:
                if self._login is None:
                    connection.sendall(_OPTIONS)
                    return len(header := connection.recv(9)) == 9 and header[4] == _SUPPORTED
        except OSError:
            return False
        first = replace(self._login, password=_FIRST_PASSWORD)
        try:
            with open_session(self.host, self.port, first, timeout_s=10.0) as session:
                # Of URL-safe letters.
                session.execute(f"ALTER ROLE {USER} WITH PASSWORD = '{self._login.password}'")
        except StreamError:
            return False
        return True

    def _last_words(self) -> str:
        lines = self.log_lines().splitlines()
        errors = [line for line in lines if " ERROR " in line or line.startswith(("Exception", "Error", "Caused by"))]
        return " ".join((errors or lines)[-1:])
