"""What the loader and its reader agree on: packets, names, and what to remove when the reader has ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

PACKET_BYTES: Final = 65_536
MORE: Final = b"+"
"""A packet that asks for one batch more."""
NAMES: Final = "joulefeed-mosaic-"
"""How the names of a reader's shared memory begin, before the id of its process, and of its folder."""


def remove_traces(pid: int | None, folder: Path) -> None:
    """Remove the shared memory of a reader whose process has ended, and its folder."""
    for path in () if pid is None else Path("/dev/shm").glob(f"{NAMES}{pid}-*"):  # noqa: S108
        path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
