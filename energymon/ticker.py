"""Takes the ticks while all is well, in compiled code; the monitor takes those that are out of the ordinary."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from energymon.clock import NS, UNNOTICED_NS
from energymon.compiled import Library

__all__ = ["Operation", "Reason", "Taken", "Ticker"]

_RING_NS: Final = 5 * NS
"""The ring holds the ticks of so long, and some at least."""
_MIN_SLOTS: Final = 32
_FOREVER: Final = 2**63 - 1
_WORD: Final = 8


class Operation(NamedTuple):
    """One answer to be had without Python: bytes read from a file, or a function's answer in a buffer."""

    size: int
    """Bytes of the answer at most."""
    fd: int = -1
    """Of the file, when it is one."""
    seeks: bool = False
    """Whether the file is read from its start each time."""
    function: int = 0
    """Address of a function (handle, buffer), or (handle, length, buffer), that returns 0 when it has succeeded."""
    handle: int = 0
    length: int | None = None
    buffer: int = 0
    """Address of the answer that the function leaves."""


class Reason(IntEnum):
    """Why a ticker has come back; the order is that of ticker.c."""

    STOPPED = 0
    FULL = 1
    LEFT = 2
    LATE = 3
    STEPPED = 4
    FAILED = 5
    SLOW = 6
    ABANDONED = 7


class Taken(NamedTuple):
    """The answers of one tick."""

    tick_ns: int
    """UTC ns."""
    raw: Sequence[list[Any]]
    """For each group of operations [t, answer, t, …, t], the answers between monotonic times, ns: bytes, a function's
    return code, or the OSError that came instead."""


class _Operation(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("fd", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("function", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
    )


class _Control(ctypes.Structure):
    _fields_ = (
        ("produced", ctypes.c_int64),
        ("begun_ns", ctypes.c_int64),
        ("next_ns", ctypes.c_int64),
        ("in_progress", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("consumed", ctypes.c_int64),
        ("until_ns", ctypes.c_int64),
        ("leave", ctypes.c_int32),
        ("abandon", ctypes.c_int32),
    )


class _Task(ctypes.Structure):
    _fields_ = (
        ("control", ctypes.POINTER(_Control)),
        ("operations", ctypes.POINTER(_Operation)),
        ("ring", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("slot_bytes", ctypes.c_int64),
        ("interval_ns", ctypes.c_int64),
        ("offset_ns", ctypes.c_int64),
        ("unnoticed_ns", ctypes.c_int64),
        ("slow_ns", ctypes.c_int64),
        ("count", ctypes.c_int32),
        ("readings", ctypes.c_int32),
    )


class Ticker:
    """A ring of ticks that compiled code fills, and Python empties on any thread, `take`.

    One thread calls `run`; the other methods may be called from any.
    """

    def __init__(
        self,
        library: Library,
        groups: Sequence[Sequence[Operation]],
        *,
        interval_ns: int,
        offset_ns: int,
        readings: int,
        slow_ns: int,
    ) -> None:
        """Take groups of operations, one a sensor, which are done in order at each tick, `readings` times.

        `offset_ns` is what the monotonic clock lacks to UTC; an operation that takes more than `slow_ns` is told.
        """
        self._run, self._end, self._free = library.run, library.ring_end, library.ring_free
        operations = [operation for group in groups for operation in group]
        self._sizes = [len(group) for group in groups]
        # The answers' bytes, then what pads them to whole words.
        form = "".join(f"qi4x{op.size}s{-op.size % _WORD}x" for op in operations)
        self._slot = struct.Struct("=qq" + form)
        capacity = max(_MIN_SLOTS, _RING_NS // interval_ns)
        self._ring = bytearray(capacity * self._slot.size)
        self._capacity = capacity
        self._control = _Control(until_ns=_FOREVER)
        self._calls = [op.fd < 0 for op in operations]
        self._operations = (_Operation * len(operations))(*map(_packed, operations))
        self._buffer = (ctypes.c_char * len(self._ring)).from_buffer(self._ring)
        self._task = _Task(
            control=ctypes.pointer(self._control),
            operations=self._operations,
            ring=ctypes.addressof(self._buffer),
            capacity=capacity,
            slot_bytes=self._slot.size,
            interval_ns=interval_ns,
            offset_ns=offset_ns,
            unnoticed_ns=UNNOTICED_NS,
            slow_ns=slow_ns,
            count=len(operations),
            readings=readings,
        )
        self._taking = threading.Lock()

    def run(self, next_ns: int) -> tuple[Reason, int]:
        """Take ticks from `next_ns` on, UTC ns; return why not further, and the tick that is due."""
        self._control.next_ns = next_ns
        reason = Reason(self._run(ctypes.byref(self._task)))
        return reason, int(self._control.next_ns)

    def take(self) -> list[Taken]:
        """Return the ticks that are in the ring and remove them."""
        control, slot = self._control, self._slot
        with self._taking:
            first, end = int(control.consumed), int(self._end(ctypes.byref(control)))
            taken = [
                self._decoded(slot.unpack_from(self._ring, at % self._capacity * slot.size)) for at in range(first, end)
            ]
            self._free(ctypes.byref(control), end)
        return taken

    def in_progress(self) -> tuple[int, int] | None:
        """Return the group that is at work and since when, monotonic ns; None between ticks."""
        begun_ns = int(self._control.begun_ns)
        return (self._group(int(self._control.in_progress)), begun_ns) if begun_ns else None

    def left_with(self) -> Taken:
        """Return what the tick that was abandoned has brought, the group that held it up last."""
        control, slot = self._control, self._slot
        whole = self._decoded(slot.unpack_from(self._ring, control.produced % self._capacity * slot.size))
        last = self._group(int(control.in_progress))
        # Of a group that was not done to its end there is no answer.
        ended = sum(self._sizes[: last + 1]) == int(control.in_progress) + 1
        return Taken(whole.tick_ns, whole.raw[: last + ended])

    def leave(self) -> None:
        """Have `run` come back before the next tick that it would take."""
        self._control.leave = 1

    def stop(self, until_ns: int) -> None:
        """Have `run` come back after the first tick that is not before `until_ns`, UTC ns."""
        self._control.until_ns = until_ns

    def abandon(self) -> None:
        """Have `run` come back as soon as the operation in progress lets it."""
        self._control.abandon = 1

    def resume(self) -> None:
        """Undo `abandon`."""
        self._control.abandon = 0

    def _group(self, operation: int) -> int:
        for group, size in enumerate(self._sizes):
            if operation < size:
                return group
            operation -= size
        raise IndexError(operation)

    def _decoded(self, flat: tuple[Any, ...]) -> Taken:
        raw: list[list[Any]] = []
        t_ns = flat[1]
        at, number = 2, 0
        for size in self._sizes:
            group: list[Any] = [t_ns]
            for _ in range(size):
                t_ns, status, data = flat[at], flat[at + 1], flat[at + 2]
                if self._calls[number]:
                    group += status or data, t_ns
                elif status == len(data):
                    group += data, t_ns
                else:
                    group += data[:status] if status >= 0 else OSError(-status, os.strerror(-status)), t_ns
                at += 3
                number += 1
            raw.append(group)
        return Taken(flat[0], raw)


def _packed(op: Operation) -> _Operation:
    read, pread, call, call_counted = range(4)
    of_file, of_function = (pread if op.seeks else read), (call if op.length is None else call_counted)
    kind = of_file if op.fd >= 0 else of_function
    return _Operation(kind, op.fd, op.length or 0, op.size, op.function, op.handle, op.buffer)
