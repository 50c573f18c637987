"""Copies past the caches, compiled by the host's compiler where it has one: half of what a plain copy of 600 kB takes.

A plain copy fetches every line of its destination before it overwrites it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["LEAST_BYTES", "LateMove", "Move", "library", "loaded"]

Move: TypeAlias = Callable[[int, int, int], object]
"""Takes where to, from where, and how many bytes; they do not overlap."""

LEAST_BYTES: Final = 1 << 17
"""From which it gains; what is smaller may well be read while it is in a cache."""
_SOURCE: Final = Path(__file__).with_name("nontemporal_copy.c")
_OPTIONS: Final = ("-O2", "-shared", "-fPIC")
_PATIENCE_S: Final = 30.0


@functools.cache
def library() -> bytes | None:
    """Return the shared library, None on a host without a compiler or with another processor."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="joulefeed-") as folder:
            built = Path(folder) / "nontemporal_copy.so"
            argv = [compiler, *_OPTIONS, "-o", str(built), str(_SOURCE)]
            subprocess.run(argv, check=True, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
            return built.read_bytes()
    except (OSError, subprocess.SubprocessError):
        # No room for it, for one; a plain copy does too.
        return None


class LateMove:
    """Copies plainly until the library is there, past the caches from then on."""

    def __init__(self, descriptor: int | None, is_there: Callable[[], bool]) -> None:
        self._descriptor, self._is_there = descriptor, is_there
        self._move: Move | None = None

    def __call__(self, to: int, at: int, nbytes: int) -> None:
        """Copy bytes between two addresses."""
        if self._move is None and self._is_there():
            self._move = loaded(self._descriptor)
        (self._move or ctypes.memmove)(to, at, nbytes)


def loaded(descriptor: int | None) -> Move:
    """Return the copy of a library that lies in a file, a plain one where there is none or it cannot be loaded."""
    if descriptor is None:
        return ctypes.memmove
    try:
        # With the process's own number, for the linker takes a name that it knows for the library that it knows.
        copy = ctypes.CDLL(f"/proc/{os.getpid()}/fd/{descriptor}").nontemporal_copy
    except (OSError, AttributeError):
        # Some hosts let no memory without a name be executed.
        return ctypes.memmove
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    copy.restype = None
    move: Move = copy
    return move
