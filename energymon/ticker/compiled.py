"""Builds the C sources of this package with the host's compiler, once, and loads them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["Library", "ticker_library"]

_SOURCE: Final = Path(__file__).with_name("ticker.c")
_PATIENCE_S: Final = 30.0
_OPTIONS: Final = ("-O2", "-shared", "-fPIC")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Library = ctypes.CDLL


@functools.cache
def ticker_library() -> Library | str:
    """Return the compiled ticker, or why there is none.

    What was built is kept in the user's cache, where nobody else may write; without such a place it is built anew
    each time. ENERGYMON_COMPILED=0 does without.
    """
    if os.environ.get("ENERGYMON_COMPILED") == "0":
        return "ENERGYMON_COMPILED=0"
    source = _SOURCE.read_bytes()
    name = f"ticker-{platform.machine()}-{hashlib.blake2b(source, digest_size=8).hexdigest()}.so"
    folder = _cache()
    try:
        if folder is not None:
            built = folder / name
            if not _private(built):
                _build(built)
            return _load(built)
        with tempfile.TemporaryDirectory(prefix="energymon-") as passing:
            built = Path(passing) / name
            _build(built)
            return _load(built)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{_SOURCE.name} cannot be built or loaded: {error}"
    except _NoCompilerError:
        return "there is no C compiler (cc)"


def _load(path: Path) -> Library:
    library = ctypes.CDLL(str(path))
    library.run.argtypes = (ctypes.c_void_p,)
    library.ring_end.argtypes = (ctypes.c_void_p,)
    library.ring_end.restype = ctypes.c_int64
    library.ring_free.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.ring_free.restype = None
    return library


class _NoCompilerError(Exception):
    """The host has none."""


def _build(out: Path) -> None:
    """Compile into `out`, which appears whole. Raises OSError and CalledProcessError."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise _NoCompilerError
    descriptor, partial = tempfile.mkstemp(dir=out.parent, prefix=out.name)
    os.close(descriptor)
    try:
        argv = [compiler, *_OPTIONS, "-o", partial, str(_SOURCE)]
        subprocess.run(argv, check=True, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
        Path(partial).chmod(0o700)
        Path(partial).replace(out)
    finally:
        Path(partial).unlink(missing_ok=True)


def _cache() -> Path | None:
    """Return a folder that is this user's alone, or None."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "joulefeed" / "energymon"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    # Whoever owns a folder above could put another in its place.
    owners = {found.stat().st_uid for found in folder.parents}
    return folder if _private(folder) and owners <= {0, os.geteuid()} else None


def _private(path: Path) -> bool:
    """Whether a file or folder is there, this user's, and not for others to write: sudo may keep another's HOME."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
