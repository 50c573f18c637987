"""Takes the ticks while all is well, in compiled code; the monitor takes those that are out of the ordinary."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from energymon.clock.monotonic import NS, UNNOTICED_NS
from joulefeed.native import compiled

Library = ctypes.CDLL
Raw: TypeAlias = "list[Any]"
"""Answers between monotonic times, ns: [t, answer, t, …, t]. An answer is bytes, a return code, or an OSError."""
_SOURCE: Final = Path(__file__).with_name("ticker.c")

_RING_NS: Final = 5 * NS
"""The ring holds the ticks of so long, and some at least."""
_MIN_SLOTS: Final = 32
_FOREVER: Final = 2**63 - 1
_WORD: Final = 8


@functools.cache
def ticker_library() -> Library | str:
    """Return the compiled ticker, or the reason why Python takes the ticks; ENERGYMON_COMPILED=0 is one."""
    if os.environ.get("ENERGYMON_COMPILED") == "0":
        return "ENERGYMON_COMPILED=0"
    try:
        with compiled(_SOURCE) as path:
            library = ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    library.run.argtypes = (ctypes.c_void_p,)
    library.ring_end.argtypes = (ctypes.c_void_p,)
    library.ring_end.restype = ctypes.c_int64
    library.ring_free.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.ring_free.restype = None
    return library


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
    ASKED = 8


class Taken(NamedTuple):
    """The answers of one tick."""

    tick_ns: int
    """UTC ns."""
    raw: Sequence[Raw]
    """For each group of operations [t, answer, t, …, t], the answers between monotonic times, ns: bytes, a function's
    return code, or the OSError that came instead."""


class _OperationStruct(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("fd", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("function", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("buffer", ctypes.c_void_p),
    )


class _ControlStruct(ctypes.Structure):
    _fields_ = (
        ("produced", ctypes.c_int64),
        ("started_ns", ctypes.c_int64),
        ("next_ns", ctypes.c_int64),
        ("in_progress", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("consumed", ctypes.c_int64),
        ("until_ns", ctypes.c_int64),
        ("leave", ctypes.c_int32),
        ("abandon", ctypes.c_int32),
    )


class _TaskStruct(ctypes.Structure):
    _fields_ = (
        ("control", ctypes.POINTER(_ControlStruct)),
        ("operations", ctypes.POINTER(_OperationStruct)),
        ("ring", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("slot_bytes", ctypes.c_int64),
        ("interval_ns", ctypes.c_int64),
        ("offset_ns", ctypes.c_int64),
        ("wall_ns", ctypes.c_int64),
        ("unnoticed_ns", ctypes.c_int64),
        ("slow_ns", ctypes.c_int64),
        ("dither_ns", ctypes.c_int64),
        ("count", ctypes.c_int32),
        ("readings", ctypes.c_int32),
        ("wake_fd", ctypes.c_int32),
        ("unused", ctypes.c_int32),
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
        wall_ns: int = 0,
        readings: int,
        slow_ns: int,
        slots: int | None = None,
        wake_fd: int = -1,
        dither_ns: int = 0,
    ) -> None:
        """Prepare the operations; `run` takes the ticks.

        Args:
            library: The compiled loop.
            groups: Operations by sensor, which are done in order at each tick.
            interval_ns: Time between two ticks, ns.
            offset_ns: The clock of the ticks minus the monotonic clock, ns.
            wall_ns: The wall clock minus the clock of the ticks, ns; default 0. `run` ends when it changes.
            readings: How often the operations are done at a tick; the last answers count.
            slow_ns: `run` reports an operation that takes longer, ns.
            slots: Ticks that the ring holds; default those of some seconds.
            wake_fd: `run` ends when this descriptor can be read; default none.
            dither_ns: Ticks are taken up to so much late, at random, ns; default 0.
        """
        self._run, self._end, self._free = library.run, library.ring_end, library.ring_free
        operations = [operation for group in groups for operation in group]
        self._groups = groups
        self._sizes = [len(group) for group in groups]
        self._slot = _layout(groups)
        capacity = slots or max(_MIN_SLOTS, _RING_NS // interval_ns)
        self._ring = bytearray(capacity * self._slot.size)
        self._capacity = capacity
        self._control = _ControlStruct(until_ns=_FOREVER)
        self._operations = (_OperationStruct * len(operations))(*map(_packed, operations))
        self._buffer = (ctypes.c_char * len(self._ring)).from_buffer(self._ring)
        self._task = _TaskStruct(
            control=ctypes.pointer(self._control),
            operations=self._operations,
            ring=ctypes.addressof(self._buffer),
            capacity=capacity,
            slot_bytes=self._slot.size,
            interval_ns=interval_ns,
            offset_ns=offset_ns,
            wall_ns=wall_ns,
            unnoticed_ns=UNNOTICED_NS,
            slow_ns=slow_ns,
            dither_ns=dither_ns,
            count=len(operations),
            readings=readings,
            wake_fd=wake_fd,
        )
        self._taking = threading.Lock()

    def run(self, next_ns: int) -> tuple[Reason, int]:
        """Take ticks from `next_ns` on, UTC ns; return why not further, and the tick that is due."""
        self._control.next_ns, self._control.leave = next_ns, 0
        reason = Reason(self._run(ctypes.byref(self._task)))
        return reason, int(self._control.next_ns)

    def take(self) -> Iterator[Taken]:
        """Copy the ticks that are in the ring and remove them; yield them in order, unpacked as they are asked for."""
        control, size = self._control, self._slot.size
        with self._taking:
            first, end = int(control.consumed), int(self._end(ctypes.byref(control)))
            if first == end:
                return iter(())
            start, stop = first % self._capacity * size, end % self._capacity * size
            ring = memoryview(self._ring)
            data = bytes(ring[start:stop]) if start < stop else bytes(ring[start:]) + bytes(ring[:stop])
            self._free(ctypes.byref(control), end)
        return (_taken(flat, self._groups) for flat in self._slot.iter_unpack(data))

    def in_progress(self) -> tuple[int, int] | None:
        """Return the group that is at work and since when, monotonic ns; None between ticks."""
        started_ns = int(self._control.started_ns)
        return (self._group(int(self._control.in_progress)), started_ns) if started_ns else None

    def left_with(self) -> Taken:
        """Return what the tick that was abandoned has brought, the group that held it up last."""
        control = self._control
        start = control.produced % self._capacity * self._slot.size
        whole = _taken(self._slot.unpack_from(self._ring, start), self._groups)
        last = self._group(int(control.in_progress))
        # Of a group that was not done to its end there is no answer.
        ended = sum(self._sizes[: last + 1]) == int(control.in_progress) + 1
        return Taken(whole.tick_ns, whole.raw[: last + ended])

    @property
    def next_ns(self) -> int:
        """The tick that is awaited or taken, UTC ns."""
        return int(self._control.next_ns)

    def leave(self) -> None:
        """Have `run`, which is under way, come back before the next tick that it would take."""
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


def _layout(groups: Sequence[Sequence[Operation]]) -> struct.Struct:
    """Return what a slot is made of; what pads an answer to whole words is left out."""
    parts = (f"qi4x{op.size}s{-op.size % _WORD}x" for operations in groups for op in operations)
    return struct.Struct("=qq" + "".join(parts))


def _taken(flat: Sequence[Any], groups: Sequence[Sequence[Operation]]) -> Taken:
    raw: list[Raw] = []
    tick_ns, t_ns = flat[:2]
    at = 2
    for operations in groups:
        answers: Raw = [t_ns]
        for op in operations:
            t_ns, status, data = flat[at : at + 3]
            at += 3
            if op.fd < 0:
                answers += status or data, t_ns
            elif status < 0:
                answers += OSError(-status, os.strerror(-status)), t_ns
            else:
                answers += data[:status], t_ns
        raw.append(answers)
    return Taken(tick_ns, raw)


def _packed(op: Operation) -> _OperationStruct:
    read, pread, call, call_counted = range(4)
    of_file, of_function = (pread if op.seeks else read), (call if op.length is None else call_counted)
    kind = of_file if op.fd >= 0 else of_function
    return _OperationStruct(kind, op.fd, op.length or 0, op.size, op.function, op.handle, op.buffer)
