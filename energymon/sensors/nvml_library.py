"""NVML's library and its Python module, and calls into it whose answers land in buffers that are kept."""

from __future__ import annotations

import ctypes
import importlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

from energymon.sensors.base import Missing, Part
from energymon.ticker.ticker import Operation

NAME: Final = "nvml"
_DRIVERS: Final = "libnvidia-ml.so.1"

# nvml.h: field ids, and the scope of power on modules that hold a CPU too.
ENERGY: Final = 83
AVERAGE_POWER: Final = 185
INSTANT_POWER: Final = 186
MODULE_SCOPE: Final = 1

_SHOWN: Final = "8xq8xIIQ"
"""nvmlFieldValue_t: fieldId, scopeId, timestamp (µs since 1970), latencyUsec, valueType, nvmlReturn, value; the ids and
the latency are left out."""
_FIELD_BYTES: Final = struct.calcsize(f"={_SHOWN}")
_MASKS: Final = {1: 2**32 - 1, 2: 2**64 - 1, 3: 2**64 - 1, 5: 2**32 - 1}
"""What of nvmlValue_t counts, by nvmlValueType_t: unsigned int, long, long long, int. Energy and power come as no
other, and the rest of a short value is not cleared."""
_UNKNOWN: Final = 999
"""NVML_ERROR_UNKNOWN."""

_ALL_BOARDS: Final[Part] = ("gpus", "gpu")
"""Stands for boards whose number is not known."""

CObject: TypeAlias = Any
"""A function, a handle or a pointer of ctypes or pynvml, which have no types."""

Shown = tuple[int, int, int]
"""NVML's return code, the value, and its timestamp, UTC ns (0 where the call has none)."""
ShownMany = tuple[Sequence[int], Sequence[int]]
"""Values and their timestamps."""


class Call(ABC):
    """One function of the library with its arguments bound; `run` is `function(*arguments)`, which returns a code."""

    def __init__(self, function: CObject, form: str, length: int | None = None) -> None:
        """Take a function (handle, buffer), or (handle, length, buffer), and what its answer is made of."""
        self.function = function
        self._form, self._length = struct.Struct(f"={form}"), length
        self.buffer = bytearray(self._form.size)
        self._array = (ctypes.c_char * len(self.buffer)).from_buffer(self.buffer)
        self.arguments: tuple[CObject, ...] = ()

    def bind(self, handle: CObject) -> None:
        """Aim the call at a board."""
        length = () if self._length is None else (ctypes.c_int(self._length),)
        self.arguments = (handle, *length, ctypes.byref(self._array))

    @property
    def operation(self) -> Operation:
        """The call for compiled code."""
        return Operation(
            len(self.buffer),
            function=_address(self.function),
            handle=_address(self.arguments[0]),
            length=self._length,
            buffer=ctypes.addressof(self._array),
            form=self._form.format.lstrip("="),
        )

    @abstractmethod
    def shown(self, data: bytes) -> list[Shown]:
        """Return what a copy of the buffer holds."""

    @abstractmethod
    def shown_many(self, parts: Sequence[Sequence[int]]) -> list[ShownMany] | None:
        """Return values and times from columns of the operation's form; None when one has a code of its own."""


class FieldsCall(Call):
    """nvmlDeviceGetFieldValues: several values, each with a return code and a timestamp of its own."""

    def __init__(self, function: CObject, fields: tuple[int, ...], scope: int) -> None:
        super().__init__(function, _SHOWN * len(fields), len(fields))
        for i, field in enumerate(fields):
            # The scope is power's; energy has one alone.
            struct.pack_into("=II", self.buffer, i * _FIELD_BYTES, field, 0 if field == ENERGY else scope)

    def shown(self, data: bytes) -> list[Shown]:
        """Return each field's code, value and time."""
        flat = self._form.unpack(data)
        return [
            (code if code or kind in _MASKS else _UNKNOWN, value & _MASKS.get(kind, 0), t_us * 1000)
            for t_us, kind, code, value in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        ]

    def shown_many(self, parts: Sequence[Sequence[int]]) -> list[ShownMany] | None:
        """Return each field's values and times."""
        fields: list[ShownMany] = []
        for times_us, kinds, codes, values in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True):
            mask = _MASKS.get(kinds[0])
            if any(codes) or mask is None or len(set(kinds)) > 1:
                return None
            fields.append(([value & mask for value in values], [t_us * 1000 for t_us in times_us]))
        return fields


class ValueCall(Call):
    """A function that returns one number, without a time."""

    def shown(self, data: bytes) -> list[Shown]:
        """Return the number."""
        return [(0, self._form.unpack(data)[0], 0)]

    def shown_many(self, parts: Sequence[Sequence[int]]) -> list[ShownMany] | None:
        """Return the numbers."""
        (values,) = parts
        return [(values, [0] * len(values))]


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
