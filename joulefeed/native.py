"""Compiles a C file to a shared library with the host's compiler, once a user.

`python -m joulefeed.native FILE.c ...` compiles ahead of time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 120.0
_OPTIONS: Final = ("-O2", "-shared", "-fPIC")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class NativeError(OSError):
    """A C file cannot be compiled on this host; the message says why."""


@contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """Yield the shared library of a C file, compiled if it is not in the cache.

    The cache is a folder of the user's cache that nobody else may write. Its files are named by a hash of the source
    and appear whole, so two processes may compile at once. Without such a folder the library is compiled into a
    temporary one, which is removed when the context is left.

    Raises:
        OSError: a NativeError where the host has no C compiler or the compiler failed; else there is no room.
    """
    digest = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest()
    name = f"{source.stem}-{platform.machine()}-{digest}.so"
    folder = _cache_folder()
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="joulefeed-") as temporary:
            _compile(source, Path(temporary) / name)
            yield Path(temporary) / name
        return
    library = folder / name
    if not _is_private(library):
        _compile(source, library)
    yield library


def _compile(source: Path, library: Path) -> None:
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeError("there is no C compiler (cc)")
    try:
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compiling-") as temporary:
            partial = Path(temporary) / library.name
            argv = [compiler, *_OPTIONS, "-o", str(partial), str(source)]
            subprocess.run(argv, check=True, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
            partial.chmod(0o700)
            partial.replace(library)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeError(f"{source.name} cannot be compiled: {error}") from error


def _cache_folder() -> Path | None:
    """Return a folder that only this user can write, or None."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "joulefeed" / "native"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    # The owner of a folder above could put another folder in its place.
    owners = {found.stat().st_uid for found in folder.parents}
    return folder if _is_private(folder) and owners <= {0, os.geteuid()} else None


def _is_private(path: Path) -> bool:
    """Whether a path exists, is this user's and not writable by others; with sudo, HOME may be another user's."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS


def main(sources: list[str]) -> int:
    """Compile the files and print what became of each; 0 even where there is no compiler, for nothing depends on it."""
    for source in sources:
        try:
            with compiled(Path(source)) as library:
                print(f"{source}: {library}")
        except OSError as error:
            print(f"{source}: {error}; Python does the same more slowly", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
