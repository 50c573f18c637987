"""Readings at the edges of windows: a program asks the agent beside it to read its sensors now.

The agent listens at a socket beside its store. A request is one number. The answer repeats it, with an instant at which
the sensors had been read and the reason why readings cannot be stored, if they cannot.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from energymon.clock.monotonic import NS, boot_ns

_REQUEST: Final = struct.Struct("=q")
_ANSWER: Final = struct.Struct("=qq")
_MAX_PROGRAMS: Final = 256
"""Connections beyond these are refused."""
_PATIENCE_S: Final = 0.1
"""A window's edge waits for the agent this long at most."""
_STEPS: Final = 4
"""Readings that follow an edge within the lag of a counter: the first update after the edge bounds it."""
_MAX_PROBLEM: Final = 4096
"""Bytes of the reason that follows an answer."""
_LONGEST_S: Final = 0.5
"""Counters that lag by more are left to the ticks."""


def socket_path(store: Path) -> Path:
    """Return where the agent that writes `store` listens."""
    real = store.resolve()
    return real.with_name(f"{real.name}-edge")


def is_abandoned(store: Path) -> bool:
    """Return whether the agent that wrote `store` was killed: its socket is there, and nobody listens."""
    try:
        Asker(store).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def follow_ups_ns(lags_s: Sequence[float]) -> tuple[int, ...]:
    """Return how long after an edge, ns, counters with these lags are read again, in order."""
    within = {round(lag_s * NS) for lag_s in lags_s if 0 < lag_s <= _LONGEST_S}
    # One more than the lag has steps, for a value is known to be new only beside one that was read after the edge.
    return tuple(sorted({0, *(lag_ns * step // _STEPS for lag_ns in within for step in range(1, _STEPS + 2))}))


class EdgeListener:
    """The agent's end. Its methods may be called from any thread, `serve` from one at a time."""

    def __init__(self, path: Path, group: int | None = None) -> None:
        """Listen at `path`, in the place of a dead agent, to the owner and to a group, if its id is given.

        Raises OSError where that cannot be.
        """
        self.path = path
        """Where the socket is, which moves with the store."""
        self._lock = threading.Lock()
        self._programs: dict[int, socket.socket] = {}
        self._asking: list[tuple[int, int]] = []
        """Descriptor of the program, and number, of each request without an answer."""
        self.problem = ""
        """What keeps the readings from being stored; "" for nothing."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            path.unlink(missing_ok=True)
            with _short(path) as name:
                self._socket.bind(name)
                os.chown(name, -1, -1 if group is None else group)
                # Who may write may connect, once somebody listens.
                Path(name).chmod(0o600 if group is None else 0o660)
            self._socket.listen(_MAX_PROGRAMS)
        except OSError:
            self._socket.close()
            raise
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for fd in (self._woken, self._socket.fileno()):
            self._epoll.register(fd, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that can be read when there is something to serve."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """Have the descriptor be readable until the next `serve`."""
        os.eventfd_write(self._woken, 1)

    def serve(self) -> bool:
        """Take what has come in, without waiting; return whether a reading is asked for."""
        with self._lock:
            for fd, _ in self._epoll.poll(0):
                if fd == self._woken:
                    os.eventfd_read(self._woken)
                elif fd == self._socket.fileno():
                    self._accept()
                else:
                    self._receive(fd)
            return bool(self._asking)

    def answer(self) -> None:
        """Answer everybody who has asked: the sensors have been read."""
        with self._lock:
            asking, self._asking = self._asking, []
            now_ns, problem = boot_ns(), self.problem.encode()[:_MAX_PROBLEM]
            for fd, number in asking:
                if fd in self._programs:
                    try:
                        self._programs[fd].send(_ANSWER.pack(number, now_ns) + problem)
                    except OSError:
                        # It is gone, or does not read what it asks for.
                        self._drop(fd)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            for fd in list(self._programs):
                self._drop(fd)
            self._socket.close()
            self.path.unlink(missing_ok=True)
            self._epoll.close()
            os.close(self._woken)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            program, _ = self._socket.accept()
            if len(self._programs) >= _MAX_PROGRAMS:
                program.close()
                return
            program.setblocking(False)
            self._programs[program.fileno()] = program
            self._epoll.register(program.fileno(), select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        try:
            request = self._programs[fd].recv(_REQUEST.size + 1)
        except OSError:
            request = b""
        if len(request) == _REQUEST.size:
            self._asking.append((fd, _REQUEST.unpack(request)[0]))
        else:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._programs.pop(fd).close()


class Asker:
    """A program's end: one thread asks at a time."""

    def __init__(self, store: Path) -> None:
        """Connect to the agent that writes `store`; raises OSError where none listens, or not to this user."""
        self._path = socket_path(store)
        self._number = 0
        self.problem = ""
        """What kept the agent from storing its readings when it answered last; "" for nothing."""
        self._socket = self._connected()

    def edge_ns(self) -> int | None:
        """Have the agent, or the one that was started in its place, read its sensors.

        Returns an instant just after that, ns of `boot_ns`; None when there is no answer in a tenth of a second.
        """
        deadline_ns = boot_ns() + round(_PATIENCE_S * NS)
        try:
            try:
                return self._ask(deadline_ns)
            except TimeoutError:
                return None
            except OSError:
                self._socket.close()
                self._socket = self._connected()
                return self._ask(deadline_ns)
        except OSError:
            # It has gone, or is busy: the ticks bound the window then.
            return None

    def close(self) -> None:
        """Hang up; may be called twice."""
        self._socket.close()

    def _connected(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            found.settimeout(_PATIENCE_S)
            with _short(self._path) as name:
                found.connect(name)
        except OSError:
            found.close()
            raise
        return found

    def _ask(self, deadline_ns: int) -> int | None:
        """Return the instant of the answer; raises OSError when there is nobody, TimeoutError at the deadline."""
        self._number += 1
        asked_ns = boot_ns()
        self._socket.settimeout(_PATIENCE_S)
        self._socket.send(_REQUEST.pack(self._number))
        while (left_s := (deadline_ns - boot_ns()) / NS) > 0:
            self._socket.settimeout(left_s)
            answer = self._socket.recv(_ANSWER.size + _MAX_PROBLEM)
            if len(answer) < _ANSWER.size:
                raise ConnectionResetError
            number, read_ns = _ANSWER.unpack_from(answer)
            # A value outside is another clock's: the agent runs in a time namespace of its own.
            if number == self._number and asked_ns <= read_ns <= boot_ns():
                self.problem = answer[_ANSWER.size :].decode(errors="replace")
                return int(read_ns)
        return None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Name a socket however long its path is: an address holds 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
