"""A connection to a host on which nothing is installed yet: `bare_host.py` answers there until it is closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeVar

from harness.testbed.hosts.connection import START_S, reach
from joulefeed.calls import call
from joulefeed.child import Child, ChildError

if TYPE_CHECKING:
    from harness.testbed.hosts.inventory import Host, Inventory

_END_S: Final = 15.0
"""The next controller comes when the claim of this one has ended."""
OLDEST_PYTHON: Final = (3, 8)
"""The oldest that Ansible's modules run under on a host, and `bare_host.py`."""
_BOOT: Final = (
    f"import sys; v = sys.version_info; v < {OLDEST_PYTHON} and sys.exit('Python %d.%d.%d is too old' % v[:3]); "
    "b = sys.stdin.buffer; exec(b.read(int(b.readline())))"
)
"""Reads a program of the length that the first line says, and leaves the rest of standard input to it."""

T = TypeVar("T")


class HostSession:
    """`bare_host.py` on one host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_claim = False
        """Whether the host is taken until this is closed."""
        self._child: Child | None = None

    def start(self) -> str | None:
        """Connect and start the program; returns why it does not run, with ssh's own words."""
        program = (files("harness.testbed.hosts") / "bare_host.py").read_bytes()
        try:
            self._child = Child(reach(self.host).command(["python3", "-Bu", "-c", _BOOT]), keep_stderr=True)
            self._child.send(b"%d\n%s" % (len(program), program))
            deadline = time.monotonic() + START_S
            # A login shell may greet first.
            while (line := self._child.read_line(max(0.0, deadline - time.monotonic()))) != b'{"ready": true}':
                if line is None:
                    return f"gave no answer within {START_S:g} s"
        except (ChildError, OSError) as error:
            return self.words() or str(error)
        return None

    def ask(self, do: str, timeout_s: float = START_S, **arguments: Any) -> Any:
        """Return the host's answer.

        Raises CallError when the host refuses or gives no answer in time, ChildError when the connection has ended.
        """
        assert self._child is not None
        return call(self._child, do, timeout_s=timeout_s, **arguments)

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


@contextmanager
def sessions_with(inventory: Inventory) -> Iterator[dict[HostSession, str | None]]:
    """Connect to all hosts at once; yields the sessions, each with why its host does not answer, and closes them."""
    sessions = [HostSession(host) for host in inventory.all]
    try:
        yield dict(zip(sessions, in_parallel(HostSession.start, sessions), strict=True))
    finally:
        for session in sessions:
            session.close()


def in_parallel(task: Callable[[HostSession], T], sessions: Sequence[HostSession]) -> list[T]:
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


def compare_clocks(ask: Callable[[], int], times: int) -> tuple[float, float]:
    """Compare this clock with another one, which `ask` returns, UTC ns, by the quickest of some exchanges.

    Returns the bound of the error, ns, which is half of the exchange, and the other clock minus this one, ns.
    """
    found = []
    for _ in range(times):
        sent_ns = time.time_ns()
        there_ns = ask()
        error_ns = (time.time_ns() - sent_ns) / 2
        found.append((error_ns, there_ns - sent_ns - error_ns))
    return min(found)
