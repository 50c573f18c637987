"""NVML's library and its Python module, and calls into it whose answers land in buffers that are kept."""

from __future__ import annotations

import ctypes
import importlib
import struct
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

from energymon.sensors.base import Missing, Operation, Part
from energymon.sensors.boards import UNCOUNTED

NAME: Final = "nvml"
_DRIVERS: Final = "libnvidia-ml.so.1"

# nvml.h: field ids.
ENERGY: Final = 83
AVERAGE_POWER: Final = 185
INSTANT_POWER: Final = 186

_FIELD_FORM: Final = "8xq8xIIQ"
"""nvmlFieldValue_t: fieldId, scopeId, timestamp (µs since 1970), latencyUsec, valueType, nvmlReturn, value; the ids and
the latency are left out."""
_MASKS: Final = {1: 2**32 - 1, 2: 2**64 - 1, 3: 2**64 - 1, 5: 2**32 - 1}
"""What of nvmlValue_t counts, by nvmlValueType_t: unsigned int, long, long long, int. Energy and power come as no
other, and the rest of a short value is not cleared."""

CObject: TypeAlias = Any
"""A function, a handle or a pointer of ctypes or pynvml, which have no types."""


class NvmlCall:
    """A function of the library with its arguments: `function(*arguments)` returns a code and fills `buffer`."""

    def __init__(
        self,
        nvml: CObject,
        function: str = "nvmlDeviceGetFieldValues",
        form: str = _FIELD_FORM,
        fields: tuple[int, ...] = (),
        *,
        of_module: bool = False,
    ) -> None:
        """Prepare a call of a function (handle, buffer), or (handle, length, buffer) where it takes `fields`.

        `form` is what each value of the answer consists of, as module struct has it. Power is that of a module that
        holds a CPU too where it is `of_module` (scope 1); energy has only one scope. Raises AttributeError where the
        library has no such function.
        """
        self.function = nvml.nvmlLib[function]
        self._value, self._fields = struct.Struct(f"={form}"), fields
        self.buffer = bytearray(self._value.size * max(len(fields), 1))
        self._array = (ctypes.c_char * len(self.buffer)).from_buffer(self.buffer)
        self.arguments: tuple[CObject, ...] = ()
        for i, field in enumerate(fields):
            struct.pack_into("=II", self.buffer, i * self._value.size, field, of_module and field != ENERGY)

    def bind(self, handle: CObject) -> None:
        """Aim the call at a board."""
        length = (ctypes.c_int(len(self._fields)),) if self._fields else ()
        self.arguments = (handle, *length, ctypes.byref(self._array))

    @property
    def operation(self) -> Operation:
        """The call for compiled code."""
        return Operation(
            len(self.buffer),
            function=_address(self.function),
            handle=_address(self.arguments[0]),
            length=len(self._fields) or None,
            buffer=ctypes.addressof(self._array),
        )

    def shown(self, data: bytes) -> list[tuple[int, int, int]]:
        """Return NVML's code, value and time, UTC ns, of each field in a copy of the buffer, or of the one number.

        A number without fields has the time 0.
        """
        if not self._fields:
            return [(0, self._value.unpack(data)[0], 0)]
        unknown = 999  # NVML_ERROR_UNKNOWN
        return [
            (code if code or kind in _MASKS else unknown, value & _MASKS.get(kind, 0), t_us * 1000)
            for t_us, kind, code, value in self._value.iter_unpack(data)
        ]


def _address(pointer: CObject) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def unanswered(error: Exception, *, has_boards: bool = True) -> Missing:
    """Return the missing part of a host whose driver answers with an error instead of its boards."""
    parts: tuple[Part, ...] = ((UNCOUNTED, "gpu"),) if has_boards else ()
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
        absent = (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        return unanswered(error, has_boards=error.value not in absent)
    if nvml.nvmlLib._handle != loaded._handle:
        nvml.nvmlShutdown()
        reason = f"{path} is not what this process has loaded as {_DRIVERS}"
        return Missing(NAME, reason, f"give one library a process, and let its SONAME be {_DRIVERS}")
    return cast(ModuleType, nvml)
