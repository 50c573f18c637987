"""A Python program without any package that answers requests on a host over SSH, and ends with the connection."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from harness.testbed.hosts.connection import OPTIONS
from joulefeed.child import Child, ChildError

if TYPE_CHECKING:
    from harness.testbed.hosts.inventory import Host

START_S: Final = 120.0
"""A slow host takes a while to log in; one that is off is refused by ssh after `CONNECT_S`."""
_END_S: Final = 15.0
"""The next controller comes when the claim of this one has ended."""
_OPTIONS: Final = (*OPTIONS, "UpdateHostKeys=no", "ControlPath=none")
OLDEST_PYTHON: Final = (3, 8)
"""The oldest that Ansible's modules run under on a host, and `host_facts.py`."""
_BOOT: Final = (
    f"import sys; v = sys.version_info; v < {OLDEST_PYTHON} and sys.exit('Python %d.%d.%d is too old' % v[:3]); "
    "b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
)
"""Reads a program of the length that the first line says, and leaves the rest of standard input to it."""

T = TypeVar("T")


class Session:
    """`host_facts.py` on one host, which answers requests until this is closed."""

    def __init__(self, host: Host, *, is_alone: bool) -> None:
        self.host = host
        self.is_alone = is_alone
        """Whether it stores and trains alone, with the network between two namespaces of it."""
        self.serves = False
        """Whether the host's data address is its own, so that others can be expected to reach it."""
        self.is_claim = False
        """Whether the host is taken until this is closed."""
        self._child: Child | None = None

    def start(self) -> None:
        """Connect and send the program; raises ChildError, with ssh's own words, where the host does not answer."""
        command = shlex.join(["python3", "-Bu", "-c", _BOOT])
        argv = shlex.split(command) if self.host.connection == "local" else [*ssh_command(self.host), command]
        program = (files("harness.testbed.hosts") / "host_facts.py").read_bytes()
        self._child = Child(argv, keep_stderr=True)
        self._child.send(b"%d\n%s" % (len(program), program))
        self.ask({"do": "clock"}, START_S)

    def ask(self, request: Mapping[str, object], timeout_s: float) -> dict[str, Any]:
        """Return the host's answer; raises ChildError where none comes in time."""
        assert self._child is not None
        self._child.send(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + timeout_s
        # A login shell may greet first.
        while (line := self._child.read_line(max(0.0, deadline - time.monotonic()))) is not None:
            if line.startswith(b"{"):
                return dict(json.loads(line))
        raise ChildError(f"gave no answer within {timeout_s:g} s")

    @property
    def is_connected(self) -> bool:
        """Whether its program runs."""
        return self._child is not None and self._child.is_alive

    def words(self) -> str:
        """Return the last line of what ssh or Python wrote on stderr."""
        return "" if self._child is None else self._child.stderr_lines(1)

    def close(self) -> None:
        """End it; may be called twice."""
        if self._child is not None and self._child.is_alive:
            with suppress(ChildError):
                self._child.send(b'{"do": "leave"}\n')
            self._child.stop(eof_s=_END_S if self.is_claim else 1.0, term_s=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ssh_command(host: Host) -> list[str]:
    """Return ssh with all that leads to a host but the command; it asks no questions and adds no host key."""
    argv = ["ssh", "-T", *(part for option in _OPTIONS for part in ("-o", option)), "-p", str(host.port)]
    if host.identity_file is not None:
        argv += ["-i", host.identity_file, "-o", "IdentitiesOnly=yes"]
    if host.user is not None:
        argv += ["-l", host.user]
    return [*argv, *shlex.split(host.ssh_args), "--", host.address]


def in_parallel(task: Callable[[Session], T], sessions: Sequence[Session]) -> list[T]:
    """Return what a task finds on each host; where it is interrupted or fails, all sessions are closed."""
    pool = ThreadPoolExecutor(max(len(sessions), 1))
    futures = [pool.submit(task, session) for session in sessions]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for session in sessions:
            session.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
