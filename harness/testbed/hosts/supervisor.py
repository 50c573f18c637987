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
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from energymon.clock.monotonic import boot_id
from harness.errors import TestbedError
from harness.system.process import run_environment
from harness.testbed.state import RunNames, state_root
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
_MISSING: Final = 127
_WRONG: Final = 2
_CHUNK_BYTES: Final = 4096
_HANG_UP: Final = select.POLLHUP | select.POLLERR | select.POLLRDHUP


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """What a supervisor does for a run."""

    run_id: str
    argv: tuple[str, ...] = ()
    """The command; empty for a lease."""
    is_python: bool = False
    """Whether `argv` are arguments of this host's own interpreter."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command has beside those of this process."""
    cwd: str | None = None
    stdin: Literal["pipe", "null"] = "null"
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
        _hear(order.silence_s or SILENCE_S, None)
    except (_EndedError, BrokenPipeError):
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        lifetime.close()
    return 0


def _command(order: RemoteCommand) -> int:
    environment = run_environment(order.run_id) | dict(order.env)
    folder = RunNames(order.run_id, state_root()).folder
    if folder.is_dir():
        temporary = folder / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        environment["TMPDIR"] = str(temporary)
    if HOST_STATE.is_dir():
        # What programs keep in a cache goes with it, too.
        environment["XDG_CACHE_HOME"] = str(HOST_STATE / "cache")
    argv = [sys.executable, "-P", *order.argv] if order.is_python else order.argv
    try:
        child = Child(
            argv,
            env=environment,
            cwd=Path(order.cwd) if order.cwd else None,
            stdin=subprocess.PIPE if order.text else 0 if order.stdin == "pipe" else subprocess.DEVNULL,
            stdout=None,
            killed_with_parent=True,
        )
    except OSError as error:
        print(f"joulefeed: {error.filename}: {error.strerror} on {platform.node()}", file=sys.stderr)
        return _MISSING
    term_s = GRACE_S
    try:
        if order.text:
            child.send(order.text.encode())
            child.hang_up()
        if order.silence_s is not None:
            term_s = _ASKED_S if _hear(order.silence_s, child) else _GONE_S
        elif _hangs_up_first(child):
            # What reads its standard input has seen the end of it, too.
            _wait(child, GRACE_S if order.stdin == "pipe" else order.linger_s)
    except _EndedError:
        pass
    status = child.stop(eof_s=0, term_s=term_s)
    return status if status >= 0 else 128 - status


def _hangs_up_first(child: Child) -> bool:
    """Wait until standard input ends, or the child; return whether it was standard input."""
    ended = os.pidfd_open(child.pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(0, select.POLLRDHUP)
    try:
        while not (ready := dict(poller.poll())):
            pass
    finally:
        os.close(ended)
    return ended not in ready


def _wait(child: Child, timeout_s: float) -> None:
    try:
        child.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return


def _hear(silence_s: float, child: Child | None) -> bool:
    """Wait until heartbeats end or stay away for `silence_s`, or the child ends; return whether they said stop."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    ended = None if child is None else os.pidfd_open(child.pid)
    if ended is not None:
        poller.register(ended, select.POLLIN)
    deadline, is_asked = time.monotonic() + silence_s, False
    while (left_s := deadline - time.monotonic()) > 0:
        ready = dict(poller.poll(left_s * 1e3))
        if ended in ready:
            break
        if 0 in ready:
            heard = os.read(0, _CHUNK_BYTES)
            is_asked = STOP in heard
            if not heard or is_asked:
                break
            deadline = time.monotonic() + silence_s
    if ended is not None:
        os.close(ended)
    return is_asked


if __name__ == "__main__":
    sys.exit(main())
