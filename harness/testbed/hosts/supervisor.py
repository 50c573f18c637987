"""The supervisor of a run's processes on another host: `python -m harness.testbed.hosts.supervisor`.

It is all that the lead's key may start there. The first line of its standard input is an RemoteCommand in JSON.

A command gets the rest of standard input; at the end of it, it is ended as `Child.stop` ends a child. With `silence_s`
the rest is heartbeats, a line each: the command is ended when they end, or stay away for so long, or say "stop".

A lease has heartbeats and no command. While they come, the run's record is on this host. Afterwards nothing of the run
is: no process, control group, mount, qdisc or file.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from energymon.clock.monotonic import boot_id
from harness.errors import TestbedError
from harness.testbed.base import Node
from joulefeed.child import GRACE_S, Child

SILENCE_S: Final = 20.0
"""A host whose lease hears nothing for so long has lost its lead."""
HOST_STATE: Final = Path("/var/lib/joulefeed")
"""What site.yml makes on a host, and teardown.yml removes with all in it."""
BEAT: Final = b"beat\n"
STOP: Final = b"stop\n"
_ASKED_S: Final = 60.0
"""What a command may take to end in order when the controller asks for it."""
_GONE_S: Final = 6.0
"""The same when the controller is gone."""
_WRONG: Final = 2
_CHUNK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """What a supervisor does for a run."""

    run_id: str
    argv: tuple[str, ...] = ()
    """The command; empty for a lease."""
    is_python: bool = False
    """Whether `argv` are arguments of this host's own interpreter."""
    gets_input: bool = False
    """Whether the command gets the rest of standard input."""
    text: str = ""
    """What the command reads from its standard input in place of that."""
    linger_s: float = 0.0
    """How long a command may run on after the end of standard input, which it does not get."""
    silence_s: float | None = None

    def to_line(self) -> bytes:
        """Return the order as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


class _EndedError(Exception):
    """A signal asked this process to end."""


def main() -> int:
    """Follow the order on standard input; returns the command's exit status, 128 + N where signal N ended it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    line = _first_line()
    try:
        order = RemoteCommand(**json.loads(line))
    except (ValueError, TypeError) as error:
        print(f"joulefeed: expected an order as one line of JSON, got {line[:100]!r} ({error})", file=sys.stderr)
        return _WRONG
    try:
        return _command(order) if order.argv else _lease(order)
    except (TestbedError, TimeoutError) as error:
        print(f"joulefeed: {error}", file=sys.stderr)
        return TestbedError.exit_status


def _end(number: int, frame: FrameType | None) -> None:
    raise _EndedError


def _first_line() -> bytes:
    # Byte by byte: what follows the line is the command's.
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line


def _lease(order: RemoteCommand) -> int:
    """Keep the record of a run on this host while heartbeats come, then remove all that the run has here."""
    from harness.testbed.lifetime import Lifetime

    lifetime = Lifetime(order.run_id)
    try:
        lifetime.wait_guarded()
        facts = {"ready": True, "folder": str(lifetime.names.folder), "hostname": platform.node(), "boot": boot_id()}
        print(json.dumps(facts), flush=True)
        _wait_for_end(None, order.silence_s or SILENCE_S)
    except (_EndedError, BrokenPipeError):
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        lifetime.close()
    return 0


def _command(order: RemoteCommand) -> int:
    if HOST_STATE.is_dir():
        # What programs keep in a cache goes with it, too.
        os.environ["XDG_CACHE_HOME"] = str(HOST_STATE / "cache")
    argv = [sys.executable, "-P", *order.argv] if order.is_python else order.argv
    stdin = subprocess.PIPE if order.text else 0 if order.gets_input else subprocess.DEVNULL
    child = Node("compute", order.run_id).start(argv, stdin=stdin)
    term_s = GRACE_S
    try:
        if order.text:
            child.send(order.text.encode())
            child.hang_up()
        end = _wait_for_end(child, order.silence_s)
        if order.silence_s is not None:
            term_s = _ASKED_S if end == "asked" else _GONE_S
        elif end == "input":
            # What reads its standard input has seen the end of it, too.
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(GRACE_S if order.gets_input else order.linger_s)
    except _EndedError:
        pass
    status = child.stop(eof_s=0, term_s=term_s)
    return status if status >= 0 else 128 - status


def _wait_for_end(child: Child | None, silence_s: float | None) -> Literal["child", "input", "asked"]:
    """Wait until the child ends, or standard input: with `silence_s` also where heartbeats stay away or say stop."""
    poller = select.poll()
    poller.register(0, select.POLLRDHUP if silence_s is None else select.POLLIN)
    ended = None if child is None else os.pidfd_open(child.pid)
    if ended is not None:
        poller.register(ended, select.POLLIN)
    try:
        while ready := dict(poller.poll(None if silence_s is None else silence_s * 1e3)):
            if ended in ready:
                return "child"
            if silence_s is None:
                break
            heard = os.read(0, _CHUNK_BYTES)
            if STOP in heard:
                return "asked"
            if not heard:
                break
        return "input"
    finally:
        if ended is not None:
            os.close(ended)


if __name__ == "__main__":
    sys.exit(main())
