"""A child process: started, waited for until it is ready, spoken to by lines, and ended with its parent."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

GRACE_S: Final = 5.0
"""How long a child may take to end before it is signalled, and again before it is killed."""
_CHUNK_BYTES: Final = 1 << 16
_MAX_WORDS_BYTES: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1
_TICKS: Final = 10
"""Looks in a second."""
# Waits for the end of the pipe $0, which its parent's end closes, and then ends the group of the command. A command
# that may end by itself gets SIGTERM and so many ticks. A process that has ended has no program any more, even where
# nobody has waited for it.
_WATCH: Final = """life=$0 grace=$1 folders=$2
shift 2
(
    trap '' HUP INT TERM
    read -r _ </dev/fd/"$life"
    [ "$grace" -eq 0 ] || kill -TERM $$
    while [ "$grace" -gt 0 ] && [ -e /proc/$$/exe ]; do sleep 0.1; grace=$((grace - 1)); done
    kill -KILL $$
    while [ "$folders" -gt 0 ]; do
        tries=50
        while [ "$tries" -gt 0 ] && [ -e /proc/$$/exe ]; do sleep 0.1; tries=$((tries - 1)); done
        rm -rf "$1"
        shift
        folders=$((folders - 1))
    done
    kill -KILL 0
) </dev/null >/dev/null 2>&1 &
shift "$folders"
exec "$@"
"""


class ChildError(Exception):
    """A child did not start, did not answer in time, or ended; the message says which, as `exited with status 1: …`."""


def read_line(descriptor: int, buffer: bytearray, timeout_s: float, max_bytes: int | None = None) -> bytes | None:
    """Return the next line of a descriptor without its end; None when none comes in time.

    Args:
        descriptor: a pipe or a socket.
        buffer: bytes that were read and not returned; the caller keeps it from line to line.
        timeout_s: how long the line may take, in s.
        max_bytes: how long it may be; without a limit by default.

    Raises:
        EOFError: there will be none, or it is too long; the message says which.
        OSError: the descriptor cannot be read.
    """
    deadline = time.monotonic() + timeout_s
    while b"\n" not in buffer:
        if max_bytes is not None and len(buffer) > max_bytes:
            raise EOFError(f"sent more than {max_bytes} bytes without the end of a line")
        if (chunk := _read_chunk(descriptor, deadline)) is None:
            return None
        if not chunk:
            raise EOFError("closed the connection")
        buffer += chunk
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return line


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process, which was forked, when the thread of `parent` that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def _read_chunk(descriptor: int, deadline: float) -> bytes | None:
    """Return what a descriptor has, at least a byte; nothing at its end, None when the time is up."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(1e3 * max(0.0, deadline - time.monotonic())):
        return None
    return os.read(descriptor, _CHUNK_BYTES)


class Child:
    """A child process in a process group of its own; it is stopped when the context is left.

    Ctrl-C on a terminal does not reach its group: the parent ends it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.PIPE,
        stdout: int | None = subprocess.PIPE,
        stderr: Path | int | None = None,
        keep_stderr: bool = False,
        pass_fds: Sequence[int] = (),
        own_group: bool = True,
        killed_with_parent: bool = False,
        group_killed_with_parent: bool = False,
        grace_without_parent_s: float = 0.0,
        removed_without_parent: Sequence[Path] = (),
    ) -> None:
        """Start it.

        Args:
            argv: command and arguments.
            prefix: a command that starts the child, such as `nsenter`, with its arguments; none by default.
            env: its environment; the caller's by default.
            cwd: its working directory; the caller's by default.
            stdin: a descriptor or a constant of `subprocess`; a pipe by default, whose end asks the child to end.
            stdout: the same, or None for the caller's; a pipe by default, which `ready` and `read_line` read.
            stderr: the same, or a file that is appended to; the caller's by default.
            keep_stderr: whether stderr goes to a temporary file, for messages; false by default.
            pass_fds: descriptors that the child inherits; none by default.
            own_group: whether it leads a process group, all of which `stop` signals; true by default.
            killed_with_parent: whether the kernel kills it when the thread that starts it ends; false by default, for
                a child that ends at the end of its stdin.
            group_killed_with_parent: whether a shell that waits in its group kills the group when this process ends or
                closes the child; false by default, for a child without children that outlive it.
            grace_without_parent_s: how long that shell lets the child end after SIGTERM; 0 s, no time, by default.
            removed_without_parent: folders that it removes then; none by default.

        Raises:
            OSError: the command, `setpriv` where it is needed, or the file of stderr cannot be used.
        """
        self._buffer = bytearray()
        self._own_group = own_group
        self._stopped = False
        self._stderr: IO[bytes] | None = None
        if isinstance(stderr, Path) or keep_stderr:
            # Closed by `stop`.
            self._stderr = stderr.open("ab+") if isinstance(stderr, Path) else tempfile.TemporaryFile()  # noqa: SIM115
            stderr = self._stderr.fileno()
        self._stderr_start = self._stderr.tell() if self._stderr is not None else 0
        reader: int | None = None
        self._life: int | None = None
        if group_killed_with_parent:
            reader, self._life = os.pipe()
            grace, folders = (
                round(_TICKS * grace_without_parent_s),
                [str(one.absolute()) for one in removed_without_parent],
            )
            argv = ["sh", "-c", _WATCH, str(reader), str(grace), str(len(folders)), *folders, *argv]
            pass_fds = [*pass_fds, reader]
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [*prefix, *(_killed_with_parent(argv) if killed_with_parent else argv)],
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                pass_fds=pass_fds,
                process_group=0 if own_group else None,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            if reader is not None:
                os.close(reader)

    @classmethod
    def around(cls, process: subprocess.Popen[bytes], stderr: IO[bytes]) -> Self:
        """Return the child of a process that leads a group; `stderr` is the file that it appends to."""
        child = cls.__new__(cls)
        child.process, child._stderr, child._stderr_start = process, stderr, stderr.tell()
        child._buffer, child._own_group, child._stopped, child._life = bytearray(), True, False, None
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def input_fd(self) -> int:
        """Descriptor of the pipe to its stdin."""
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    @property
    def output_fd(self) -> int:
        """Descriptor of the pipe from its stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def ready(self, timeout_s: float) -> dict[str, object]:
        """Wait for its first line, a JSON object, and return it; raises ChildError where none comes in time."""
        line = self.read_line(timeout_s)
        if line is None:
            raise ChildError(_with_words(f"was not ready within {timeout_s:g} s", self.stderr_lines(1)))
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ChildError(f"expected a line of JSON from it, got {line[:200]!r}")
        return answer

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return its next line; None when none comes in time. Raises ChildError when its stdout has ended."""
        try:
            return read_line(self.output_fd, self._buffer, timeout_s)
        except EOFError as error:
            raise ChildError(self.describe_end()) from error

    def send(self, message: bytes) -> None:
        """Write to its stdin; raises ChildError when it is gone."""
        view = memoryview(message)
        try:
            while view:
                view = view[os.write(self.input_fd, view) :]
        except (BrokenPipeError, ValueError) as error:
            raise ChildError(self.describe_end()) from error

    def describe_end(self, timeout_s: float = GRACE_S) -> str:
        """Say how it ended, with the last line of its stderr; waits for its end for up to `timeout_s`."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return _with_words("closed its output and runs on", self.stderr_lines(1))
        if status >= 0:
            return _with_words(f"exited with status {status}", self.stderr_lines(1))
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = " (out of memory? see dmesg)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def stderr_lines(self, count: int) -> str:
        """Return the last lines that it wrote to stderr, where that is a file; empty lines are left out."""
        if self._stderr is None or self._stderr.closed:
            return ""
        end = os.fstat(self._stderr.fileno()).st_size
        start = max(self._stderr_start, end - _MAX_WORDS_BYTES)
        text = os.pread(self._stderr.fileno(), end - start, start).decode(errors="replace")
        return "\n".join([line for line in text.splitlines() if line.strip()][-count:])

    def finish(self, timeout_s: float) -> bytes | None:
        """Close its stdin, wait for its end and return the rest of its stdout; None when that takes too long."""
        with suppress(BrokenPipeError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        deadline = time.monotonic() + timeout_s
        while chunk := _read_chunk(self.output_fd, deadline):
            self._buffer += chunk
        is_whole = chunk is not None and self._ends_within(max(0.0, deadline - time.monotonic()))
        return bytes(self._buffer) if is_whole else None

    def hang_up(self) -> None:
        """Close both pipes, which asks it to end; it need not be waited for yet."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and the rest of its group, if they are there."""
        with suppress(ProcessLookupError):
            if self._own_group:
                os.killpg(self.pid, number)
            elif self.is_alive:
                os.kill(self.pid, number)

    def stop(self, *, eof_s: float = GRACE_S, term_s: float = GRACE_S) -> int:
        """End it and return its exit status: end of stdin, after `eof_s` SIGTERM, after `term_s` more SIGKILL.

        The signals go to its whole group, and what it left in its group is killed even when it has ended itself. A
        child without a pipe to its stdin gets SIGTERM at once. May be called twice.
        """
        if self._stopped:
            # Another group may have its number by now.
            return self.process.wait()
        has_input = self.process.stdin is not None
        self.hang_up()
        if not (has_input and self._ends_within(eof_s)):
            if self.is_alive and term_s > 0:
                self.signal(signal.SIGTERM)
            self._ends_within(term_s)
        self.signal(signal.SIGKILL)
        self._stopped = True
        self._close_files()
        return self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ends_within(self, timeout_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return not self.is_alive

    def _close_files(self) -> None:
        if self._stderr is not None:
            self._stderr.close()
        if self._life is not None:
            os.close(self._life)
            self._life = None


def _killed_with_parent(argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` so that the kernel kills it when its parent thread ends."""
    # setpriv and not preexec_fn: the latter can deadlock in a parent with threads. The shell notices a parent that
    # died before the kernel knew: its child has another parent by then.
    unless_orphaned = ["sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
    return ["setpriv", "--pdeathsig", "KILL", "--", *unless_orphaned, *argv]


def _with_words(what: str, words: str) -> str:
    return f"{what}: {words}" if words else what
