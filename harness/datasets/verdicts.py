"""Verdicts on the files of a real tree, kept in the cache for as long as the tree is as it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from harness.datasets.cache import storage_errors
from harness.datasets.handle import Progress
from harness.datasets.scan import Listing
from harness.datasets.verify import defect, defects

__all__ = ["shown", "verdicts"]

_VERSION: Final = 1
"""Raised when files are judged in another way, so that no older verdict is kept."""


def verdicts(
    listing: Listing, cache: Path, what: str, progress: Progress, judge: Callable[[Path], str | None] = defect
) -> dict[int, str]:
    """Return what is wrong with broken files by position, from the cache when the tree is as it was.

    `judge` says of one file what is wrong with it, "cannot be read ..." for what may be right another time.
    """
    judged_by = f"{judge.__module__}.{judge.__qualname__}"
    text = f"{_VERSION}\0{judged_by}\0{listing.root}\0{listing.fingerprint()}"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    stored = cache / "trees" / f"{key}.json"
    try:
        return {int(position): str(reason) for position, reason in json.loads(stored.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        pass  # not judged yet, or a verdict that was cut short
    total = len(listing.files)
    progress(what, 0, total)
    named = [position for position, file in enumerate(listing.files) if not _is_text(file.path)]
    found = defects(
        [listing.root / file.path for file in listing.files], lambda done: progress(what, done, total), judge
    )
    found.update(dict.fromkeys(named, "has a name that is not UTF-8"))
    # What cannot be read today may be readable tomorrow, and no time of change would tell.
    if not any(reason.startswith("cannot be read") for reason in found.values()):
        with storage_errors(stored.parent):
            stored.parent.mkdir(parents=True, exist_ok=True)
            partial = stored.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps(found))
            partial.replace(stored)
    return found


def shown(path: str) -> str:
    """Return a path as messages show it, bytes that are no UTF-8 escaped."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
