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
from typing import Any, Final, NamedTuple

from energymon.clock.monotonic import NS, UNNOTICED_NS
from energymon.sensors.base import Operation, Raw
from joulefeed.native import compiled

Library = ctypes.CDLL
_SOURCE: Final = Path(__file__).with_name("ticker.c")


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


Reason = IntEnum("Reason", "STOPPED FULL LEFT LATE STEPPED FAILED SLOW ABANDONED ASKED", start=0)
"""Why a ticker has come back; the order is that of ticker.c."""


class Taken(NamedTuple):
    """The answers of one tick."""

    tick_ns: int
    """UTC ns."""
    raw: Sequence[Raw]
    """For each group of operations the answers between their times."""


def _fields(*types: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Return the fields of a structure from (type, names)."""
    return [(name, kind) for kind, names in types for name in names.split()]


class _OperationStruct(ctypes.Structure):
    _fields_ = _fields((ctypes.c_int32, "kind fd count size"), (ctypes.c_void_p, "function handle buffer"))


class _ControlStruct(ctypes.Structure):
    _fields_ = _fields(
        (ctypes.c_int64, "produced started_ns next_ns"),
        (ctypes.c_int32, "in_progress unused"),
        (ctypes.c_int64, "consumed until_ns"),
        (ctypes.c_int32, "leave abandon"),
    )


class _TaskStruct(ctypes.Structure):
    _fields_ = _fields(
        (ctypes.c_void_p, "control operations ring"),
        (ctypes.c_int64, "capacity slot_bytes interval_ns offset_ns wall_ns unnoticed_ns slow_ns dither_ns"),
        (ctypes.c_int32, "count readings wake_fd unused"),
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
        """Prepare the operations.

        Args:
            library: The compiled loop.
            groups: Operations by sensor, which are done in order at each tick.
            interval_ns: Time between two ticks, ns.
            offset_ns: The clock of the ticks minus the monotonic clock, ns.
            wall_ns: The wall clock minus the clock of the ticks, ns; default 0. `run` ends when it changes.
            readings: How often the operations are done at a tick; the last answers count.
            slow_ns: `run` reports an operation that takes longer, ns.
            slots: Ticks that the ring holds; default those of five seconds, and 32 at least.
            wake_fd: `run` ends when this descriptor can be read; default none.
            dither_ns: Ticks are taken up to so much late, at random, ns; default 0.
        """
        self._run, self._end, self._free = library.run, library.ring_end, library.ring_free
        operations = [operation for group in groups for operation in group]
        self._groups = groups
        self._group_of = [index for index, group in enumerate(groups) for _ in group]
        # What pads an answer to whole words of 8 bytes is left out.
        self._slot = struct.Struct("=qq" + "".join(f"qi4x{op.size}s{-op.size % 8}x" for op in operations))
        self._capacity = slots or max(32, 5 * NS // interval_ns)
        self._ring = bytearray(self._capacity * self._slot.size)
        self._control = _ControlStruct(until_ns=2**63 - 1)
        self._operations = (_OperationStruct * len(operations))(*map(_packed, operations))
        self._buffer = (ctypes.c_char * len(self._ring)).from_buffer(self._ring)
        self._task = _TaskStruct(
            control=ctypes.addressof(self._control),
            operations=ctypes.addressof(self._operations),
            ring=ctypes.addressof(self._buffer),
            capacity=self._capacity,
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
        return Reason(self._run(ctypes.byref(self._task))), self.next_ns

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
        return (self._group_of[self._control.in_progress], started_ns) if started_ns else None

    def left_with(self) -> Taken:
        """Return what the tick that was abandoned has brought, the group that held it up last."""
        control = self._control
        start = control.produced % self._capacity * self._slot.size
        whole = _taken(self._slot.unpack_from(self._ring, start), self._groups)
        last = self._group_of[control.in_progress]
        # Of a group that was not done to its end there is no answer.
        is_whole = last not in self._group_of[control.in_progress + 1 :]
        return Taken(whole.tick_ns, whole.raw[: last + is_whole])

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
    # The order is that of ticker.c: READ, PREAD, CALL, CALL_COUNTED.
    kind = int(op.seeks) if op.fd >= 0 else 2 + (op.length is not None)
    return _OperationStruct(kind, op.fd, op.length or 0, op.size, op.function, op.handle, op.buffer)
