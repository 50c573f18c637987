"""A server program: started on a free port, waited for until it is ready, and ended with its parent."""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final

from joulefeed.child import GRACE_S, Child
from joulefeed.closing import Closing

_POLL_S: Final = 0.02
_TRIES: Final = 5
"""Free ports that are tried: another process can take one before the server does."""
_LINES: Final = 200


class ServerError(Exception):
    """A server did not start, or an address cannot be listened on; the message says which and why."""


class ServerProcess(Closing):
    """A server program that is ready; it ends with its context, and with this process where that is killed.

    A subclass names the program and says how it is started and when it is ready. `_error` is the class of the errors
    that are raised.
    """

    _name: ClassVar[str]
    _error: ClassVar[type[Exception]] = ServerError
    _taken_words: ClassVar[Sequence[str]] = ()
    """What the program says, before it ends, where another process has its port."""
    _ready_words: ClassVar[str] = ""
    """What it says when it listens. Until then another server may be the one that answers on its port."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        port: int = 0,
        log: Path | None = None,
        removes: Sequence[Path] = (),
        end_s: float = GRACE_S,
        timeout_s: float = 30.0,
    ) -> None:
        """Start it and wait until it is ready.

        Args:
            host: numeric address to listen on (default: 127.0.0.1).
            port: the port there (default: any free one).
            log: file that its messages are appended to (default: a temporary one, for errors).
            removes: folders that are removed at its end, also where this process is killed (default: none).
            end_s: how long it may take to end after SIGTERM, in s; 0 kills it at once (default: 5).
            timeout_s: how long it may take to be ready, in s (default: 30).

        Raises an error of `_error` that says why it did not start, with its last words.
        """
        self.host, self.port = host, port
        """The address that it listens on."""
        self._log, self._end_s = log, end_s
        self._child: Child | None = None
        self.temporary = Path(tempfile.mkdtemp(prefix=f"joulefeed-{self._name.lower()}-"))
        """A folder of its own, removed at the end."""
        self._removes = [self.temporary, *removes]
        try:
            if port:
                check_free(host, port, self._error)
            for last in range(_TRIES):
                self.port = port or find_free_port(host, self._error)
                self._start()
                if not (failure := self._wait_until_ready(timeout_s)):
                    return
                is_taken = any(words in self.log_lines() for words in self._taken_words)
                if port or not is_taken or last == _TRIES - 1:
                    raise self._error(failure)
                self._child_of_start.stop(term_s=0.0)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command that listens on `host` and `port`; writes the files that it needs."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the program answers, within seconds."""

    def _environment(self) -> Mapping[str, str] | None:
        """Return the program's environment; that of this process by default."""
        return None

    def _last_words(self) -> str:
        """Return what the program said last, for an error."""
        return " ".join(self._child_of_start.stderr_lines(1).split())

    @property
    def address(self) -> str:
        """HOST:PORT, where an IPv6 host stands in brackets."""
        return join_address(self.host, self.port)

    @property
    def pid(self) -> int:
        """Its process, which leads a process group."""
        return self._child_of_start.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child_of_start.is_alive

    def log_lines(self, count: int = _LINES) -> str:
        """Return the last lines that it wrote to standard error."""
        return self._child_of_start.stderr_lines(count)

    def failure(self) -> str | None:
        """Say how the server ended, or None while it runs."""
        if (status := self._child_of_start.process.poll()) is None:
            return None
        words = self._last_words() if status > 0 else ""
        return f"{self._name} at {self.address} ended: {words or f'it {self.describe_end()}'}"

    def describe_end(self) -> str:
        """Say how the process ended, as `exited with status 1`; waits some seconds for its end."""
        return self._child_of_start.describe_end()

    def wait(self, eof_of: int | None = None) -> str | None:
        """Wait until a descriptor is at its end, or the server has ended, which is returned as `failure` says it."""
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(self.pid)
            try:
                while self.is_alive:
                    ready, _, _ = select.select([ended] if eof_of is None else [ended, eof_of], [], [])
                    if eof_of in ready and not os.read(eof_of, 2**12):
                        return None
            finally:
                os.close(ended)
        return self.failure()

    def stop(self, *, end_s: float | None = None) -> int | None:
        """End it and return its exit status; None where it was not started. May be called twice.

        `end_s` replaces the time that it has to end after SIGTERM, in s.
        """
        if self._child is None:
            return None
        return self._child.stop(term_s=self._end_s if end_s is None else end_s)

    def close(self) -> None:
        """End it and remove its folders; may be called twice."""
        self.stop()
        for folder in self._removes:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _child_of_start(self) -> Child:
        assert self._child is not None, "it was not started"
        return self._child

    def _start(self) -> None:
        command = self._command()
        try:
            self._child = Child(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                keep_stderr=self._log is None,
                group_killed_with_parent=True,
                grace_without_parent_s=self._end_s,
                removed_without_parent=self._removes,
            )
        except OSError as error:
            raise self._error(f"{self._name} cannot be started: {error.filename}: {error.strerror}") from error

    def _wait_until_ready(self, timeout_s: float) -> str:
        """Return "" once the server is ready, or why it is not."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (failure := self.failure()) is not None:
                return failure
            if self._ready_words in self.log_lines() and self._is_ready():
                return ""
            time.sleep(_POLL_S)
        why = f": {words}" if (words := self._last_words()) else ""
        return f"{self._name} at {self.address} was not ready within {timeout_s:g} s{why}"


def join_address(host: str, port: int | str) -> str:
    """Return HOST:PORT, where an IPv6 host stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def find_free_port(host: str = "127.0.0.1", error: type[Exception] = ServerError) -> int:
    """Return a port on which nothing listens; raises `error` where the host is no numeric address of this machine."""
    with _listening(host, 0, error) as listener:
        return int(listener.getsockname()[1])


def check_free(host: str, port: int, error: type[Exception] = ServerError) -> None:
    """Raise `error`, which says what to do, where no server could listen on an address."""
    _listening(host, port, error).close()


def _listening(host: str, port: int, error: type[Exception]) -> socket.socket:
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError as wrong:
        raise error(f"{host}: expected a numeric address") from wrong
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as wrong:
        listener.close()
        remedy = {
            errno.EADDRINUSE: "stop what listens there, or choose another port (0: any free one)",
            errno.EADDRNOTAVAIL: "this is no address of this host; name one that it has",
        }.get(wrong.errno or 0, "choose another address")
        raise error(f"{join_address(host, port)} cannot be listened on ({wrong.strerror}): {remedy}") from wrong
    return listener
