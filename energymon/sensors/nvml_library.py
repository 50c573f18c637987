"""NVML's library and its Python module, and calls into it whose answers land in buffers that are kept."""

from __future__ import annotations

import ctypes
import importlib
import struct
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from energymon.sensors.base import Missing, Part
from energymon.sensors.boards import UNCOUNTED

if TYPE_CHECKING:
    from energymon.ticker.ticker import Operation

NAME: Final = "nvml"
_DRIVERS: Final = "libnvidia-ml.so.1"

# nvml.h: field ids, and the scope of power on modules that hold a CPU too.
ENERGY: Final = 83
AVERAGE_POWER: Final = 185
INSTANT_POWER: Final = 186
MODULE_SCOPE: Final = 1

FIELD_FORM: Final = "8xq8xIIQ"
"""nvmlFieldValue_t: fieldId, scopeId, timestamp (µs since 1970), latencyUsec, valueType, nvmlReturn, value; the ids and
the latency are left out."""
_MASKS: Final = {1: 2**32 - 1, 2: 2**64 - 1, 3: 2**64 - 1, 5: 2**32 - 1}
"""What of nvmlValue_t counts, by nvmlValueType_t: unsigned int, long, long long, int. Energy and power come as no
other, and the rest of a short value is not cleared."""
_UNKNOWN: Final = 999
"""NVML_ERROR_UNKNOWN."""

_ALL_BOARDS: Final[Part] = (UNCOUNTED, "gpu")

CObject: TypeAlias = Any
"""A function, a handle or a pointer of ctypes or pynvml, which have no types."""

Shown = tuple[int, int, int]
"""NVML's return code, the value, and its timestamp, UTC ns (0 where the call has none)."""


class NvmlCall:
    """A function of the library with its arguments: `function(*arguments)` returns a code and fills `buffer`."""

    def __init__(self, function: CObject, form: str, fields: tuple[int, ...] = (), scope: int = 0) -> None:
        """Prepare a call.

        Args:
            function: Function (handle, buffer), or (handle, length, buffer) where it takes `fields`.
            form: What each value of the answer consists of, as module struct has it.
            fields: Ids of the fields that nvmlDeviceGetFieldValues is asked for; default none.
            scope: Scope of the fields of power; energy has one scope alone.
        """
        self.function = function
        self._value, self._fields = struct.Struct(f"={form}"), fields
        self.buffer = bytearray(self._value.size * max(len(fields), 1))
        self._array = (ctypes.c_char * len(self.buffer)).from_buffer(self.buffer)
        self.arguments: tuple[CObject, ...] = ()
        for i, field in enumerate(fields):
            struct.pack_into("=II", self.buffer, i * self._value.size, field, 0 if field == ENERGY else scope)

    def bind(self, handle: CObject) -> None:
        """Aim the call at a board."""
        length = (ctypes.c_int(len(self._fields)),) if self._fields else ()
        self.arguments = (handle, *length, ctypes.byref(self._array))

    @property
    def operation(self) -> Operation:
        """The call for compiled code."""
        from energymon.ticker.ticker import Operation

        return Operation(
            len(self.buffer),
            function=_address(self.function),
            handle=_address(self.arguments[0]),
            length=len(self._fields) or None,
            buffer=ctypes.addressof(self._array),
        )

    def shown(self, data: bytes) -> list[Shown]:
        """Return code, value and time of each field in a copy of the buffer, or of the one number without a time."""
        if not self._fields:
            return [(0, self._value.unpack(data)[0], 0)]
        return [
            (code if code or kind in _MASKS else _UNKNOWN, value & _MASKS.get(kind, 0), t_us * 1000)
            for t_us, kind, code, value in self._value.iter_unpack(data)
        ]


def _address(pointer: CObject) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def unanswered(error: Exception, parts: tuple[Part, ...] = (_ALL_BOARDS,)) -> Missing:
    """Return what is missing where the driver answers with an error instead of its boards."""
    return Missing(NAME, f"the driver answers: {error}", "check that nvidia-smi works as this user", parts)


def load(library: Path | None) -> ModuleType | Missing:
    """Return the initialised module pynvml, bound to `library` or else to the driver's, or why there is none.

    Importing pynvml takes 50 ms, so the library is looked for first. A library of another path serves when its
    SONAME is the driver's, by which the loader finds a library that is loaded.
    """
    path = _DRIVERS if library is None else str(library.absolute())
    try:
        loaded = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        if library is None:
            return Missing(NAME, f"{_DRIVERS} is not on this host", "GPUs need the NVIDIA driver installed")
        return Missing(NAME, f"--nvml {library}: {error}", f"expected a library with NVML's functions, {_DRIVERS}")
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        return Missing(NAME, f"{error}", "install nvidia-ml-py")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        # The library without a driver, as images for GPUs have it, is no sign of a board.
        there = error.value not in (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        return unanswered(error, (_ALL_BOARDS,) if there else ())
    if nvml.nvmlLib._handle != loaded._handle:
        nvml.nvmlShutdown()
        reason = f"{path} is not what this process has loaded as {_DRIVERS}"
        return Missing(NAME, reason, f"give one library a process, and let its SONAME be {_DRIVERS}")
    return cast(ModuleType, nvml)
