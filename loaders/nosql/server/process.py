"""A Cassandra server that is ready, and that ends with its parent."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Final

from joulefeed.child import Child
from joulefeed.closing import Closing
from loaders.errors import LoaderConfigError, StreamError
from loaders.nosql.keys import USER, load_daemon_keys
from loaders.nosql.server.configuration import DiskAccess, ServerConfiguration
from loaders.nosql.server.installation import DatabaseServerError, find_installation
from loaders.nosql.session import Login, open_session

_POLL_S: Final = 0.02
_FIRST_PASSWORD: Final = "cassandra"  # noqa: S105 - known to all, and changed before the server is ready
_OPTIONS: Final = bytes.fromhex("040000000500000000")
"""The frame OPTIONS of the native protocol, version 4, which a server answers before anybody has logged in."""
_SUPPORTED: Final = 6
_DRAIN_S: Final = 120.0
_DRAINED: Final = (0, 128 + SIGTERM)
"""Exit statuses of a Java that has written its tables."""
_LINES: Final = 200
# Its parent's end closes the pipe to its stdin, even where the parent was killed. The server is asked to end; where
# its folder $0 is removed, nothing of which is kept, it is killed.
_SCRIPT: Final = """remove=$0 temporary=$1 signal=TERM
shift
[ -z "$remove" ] || signal=KILL
exec 3<&0
setpriv --pdeathsig KILL -- "$@" </dev/null 3<&- >&2 & server=$!
(while read -r _; do :; done; kill -$signal $server) <&3 2>/dev/null & reader=$!
trap 'kill -$signal $server' TERM
exec 3<&-
status=1
while kill -0 $server 2>/dev/null; do wait $server; status=$?; done
kill $reader 2>/dev/null
rm -rf "$temporary" ${remove:+"$remove"}
exit $status"""


class CassandraServer(Closing):
    """A server with one node, which takes queries on one address; its other port is on loopback."""

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

        Raises DatabaseServerError saying why it did not start, LoaderConfigError for keys that cannot be used.
        """
        self._home, self._is_kept = home.absolute(), not removes_home
        self._temporary = Path(tempfile.mkdtemp(prefix="joulefeed-java-"))
        try:
            self.host, self.port = host, port or _free_port(host)
            """The address that takes queries."""
            self._login = None if keys is None else load_daemon_keys(keys)
            _check_free(self.host, self.port)
            installation = find_installation()
            self._home.mkdir(parents=True, exist_ok=True)
            storage_port = _free_port("127.0.0.1")
            configuration = ServerConfiguration(
                home=self._home,
                temporary=self._temporary,
                host=self.host,
                port=self.port,
                storage_port=storage_port,
                keys=keys and keys.absolute(),
                heap_mb=heap_mb,
                disk_access=disk_access,
            )
            configuration.write()
            folders = ["" if self._is_kept else str(self._home), str(self._temporary)]
            self._child = Child(
                ["sh", "-c", _SCRIPT, *folders, *installation.command(configuration.java_options())],
                stdout=subprocess.DEVNULL,
                stderr=self._home / "log",
            )
            self._wait(time.monotonic() + timeout_s, timeout_s)
        except OSError as error:
            self.close()
            raise DatabaseServerError(
                f"{error.filename or home}: {error.strerror}: expected a folder that the server can write"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> str:
        """HOST:PORT that takes queries."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process group's leader, the parent of Java."""
        return self._child.pid

    def failure(self) -> str | None:
        """Say how the server ended, or None while it runs."""
        if self._child.is_alive:
            return None
        return f"Cassandra at {self.endpoint} ended: {self._words() or self._child.describe_end()}"

    def wait(self, eof_of: int | None) -> str | None:
        """Wait until a descriptor is at its end, or the server has ended, which is returned as `failure` says it."""
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(self._child.pid)
            try:
                while self._child.is_alive:
                    ready, _, _ = select.select([ended] if eof_of is None else [ended, eof_of], [], [])
                    if eof_of in ready and not os.read(eof_of, 2**12):
                        return None
            finally:
                os.close(ended)
        return self.failure()

    def log_lines(self) -> str:
        """Return the last lines that the server has logged: warnings and errors."""
        return self._child.stderr_lines(_LINES)

    def __exit__(self, *error: object) -> None:
        if error[0] is not None and self._is_kept:
            # Its next start reads the log of what it has stored.
            self._child.signal(SIGKILL)
        self.close()
        if error[0] is None and self._is_kept and self._child.stop() not in _DRAINED:
            raise DatabaseServerError(
                f"Cassandra at {self.endpoint} ended before its tables were written ({self._child.describe_end()}); "
                f"{self._home} has the log of what it stored, from which its next start goes on"
            )

    def close(self) -> None:
        """End it, its tables written to its files where they are kept; may be called twice.

        At the end of a context DatabaseServerError is raised where they were not written.
        """
        if not hasattr(self, "_child"):
            for folder in (self._temporary, *(() if self._is_kept else (self._home,))):
                shutil.rmtree(folder, ignore_errors=True)
            return
        if self._is_kept and self._child.is_alive:
            self._child.signal(SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._child.process.wait(_DRAIN_S)
        self._child.stop()
        # Of a server that was killed with its process group.
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _wait(self, deadline: float, timeout_s: float) -> None:
        while not self._is_ready():
            if not self._child.is_alive:
                raise DatabaseServerError(self.failure())
            if time.monotonic() > deadline:
                why = f": {words}" if (words := self._words()) else ""
                raise DatabaseServerError(f"Cassandra at {self.endpoint} was not ready within {timeout_s:g} s{why}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        if self._login is None:
            return self._answers()
        return self._can_connect() and self._sets_password()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), 2.0) as connection:
                connection.sendall(_OPTIONS)
                return len(header := connection.recv(9)) == 9 and header[4] == _SUPPORTED
        except OSError:
            return False

    def _can_connect(self) -> bool:
        with suppress(OSError), socket.create_connection((self.host, self.port), 2.0):
            return True
        return False

    def _sets_password(self) -> bool:
        assert self._login is not None
        login = Login(USER, _FIRST_PASSWORD, self._login.context())
        try:
            with open_session(self.host, self.port, login, timeout_s=10.0) as session:
                session.execute(f"ALTER ROLE {USER} WITH PASSWORD = '{self._login.password}'")  # of URL-safe letters
        except StreamError:
            return False
        return True

    def _words(self) -> str:
        lines = self.log_lines().splitlines()
        errors = [line for line in lines if " ERROR " in line or line.startswith(("Exception", "Error", "Caused by"))]
        return " ".join((errors or lines)[-1:])


def _free_port(host: str) -> int:
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as listener:
            listener.bind((host, 0))
            return int(listener.getsockname()[1])
    except OSError as error:
        raise DatabaseServerError(
            f"{host} is no address of this host ({error.strerror}); name one that it has"
        ) from error


def _check_free(host: str, port: int) -> None:
    """Raise DatabaseServerError where a server could not listen; Cassandra itself would start for seconds first."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen()
    except OSError as error:
        remedy = {
            errno.EADDRINUSE: "stop what listens there, or choose another port (0: any free one)",
            errno.EADDRNOTAVAIL: "this is no address of this host; name one that it has",
        }.get(error.errno or 0, "choose another address")
        raise DatabaseServerError(f"{host}:{port} cannot be listened on ({error.strerror}): {remedy}") from error


def _family(host: str) -> socket.AddressFamily:
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise LoaderConfigError(f"{host}: expected a numeric address") from error
    if address.is_unspecified:
        raise LoaderConfigError(f"{host}: Cassandra announces one address to its clients; name that one")
    return socket.AF_INET6 if address.version == 6 else socket.AF_INET
