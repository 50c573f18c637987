"""NumPy's files, read in any thread.

NumPy has Python parse the header of a .npy file. The parser of CPython 3.11 up to 3.11.7 fails now and then where
several threads parse at a time ("AST constructor recursion depth mismatch", CPython issue 106905), so they take turns.
"""

from __future__ import annotations

import os
import threading
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

PARSING: Final = threading.Lock()
"""Held while a header is parsed. Nothing that waits for storage long belongs inside."""
# A child that is forked while a thread of its parent holds it would wait without end.
os.register_at_fork(after_in_child=PARSING._at_fork_reinit)  # type: ignore[attr-defined]


def load_npy(content: bytes | memoryview) -> Any:
    """Return what a .npy or .npz file in memory has; raises what `numpy.load` raises."""
    with PARSING:
        return np.load(BytesIO(content), allow_pickle=False)


def map_npy(path: Path, mode: Literal["r", "c"]) -> Any:
    """Map a .npy file into memory, read-only ("r") or copied where it is written ("c"); raises as `numpy.load` does."""
    # The header is in the page cache when its turn comes, so that files of distant storage are read side by side.
    with path.open("rb") as file:
        file.read(1)
    with PARSING:
        return np.load(path, mmap_mode=mode, allow_pickle=False)
