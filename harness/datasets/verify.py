"""Judges whether the files of a real tree are whole; verdicts stay in the cache while the tree is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

from PIL import Image

from harness.datasets import Progress
from harness.datasets.cache import storage_errors
from harness.datasets.scan import Listing, in_threads

__all__ = ["defect", "verdicts"]

_VERSION: Final = 1
"""Raised when files are judged in another way, so that no older verdict is kept."""
_CHUNK: Final = 64
_TAIL_BYTES: Final = 12
_SMALL_BYTES: Final = 1024
"""Files this small are decoded in any case."""
_ENDS: Final = {"JPEG": b"\xff\xd9", "PNG": b"\0\0\0\0IEND\xaeB`\x82"}
"""Formats that every loader's engine decodes, whatever the file's name ends with, and how they end."""


def defect(path: Path) -> str | None:
    """Say what is wrong with an image file, None if nothing is.

    A file that ends as its format demands is taken for whole; any other is decoded, which tells one that was cut
    short from one with further bytes after its end.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return "is empty"
            tail = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            if size >= _SMALL_BYTES and tail.endswith(tuple(_ENDS.values())):
                return None
            data = file.readall()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return _undecodable(data)


def _undecodable(data: bytes) -> str | None:
    try:
        with Image.open(BytesIO(data)) as image:
            kind = image.format
            if kind not in _ENDS:
                return f"holds {kind}, expected JPEG or PNG"
            image.load()
    except Exception as error:  # noqa: BLE001 - PIL's decoders raise whatever their parsing runs into
        return f"is truncated or no image ({error})"
    if _ENDS[kind] not in data:  # decoders forgive the loss of the last few bytes
        return f"is truncated ({kind} without its end marker)"
    return None


def verdicts(
    listing: Listing, cache: Path, what: str, progress: Progress, judge: Callable[[Path], str | None] = defect
) -> dict[str, str]:
    """Return the reasons why files are broken, by path, from the cache when the tree is as it was.

    `judge` says of one file what is wrong with it, "cannot be read ..." for what may be right another time.
    """
    files = listing.files
    text = f"{_VERSION}\0{judge.__module__}.{judge.__qualname__}\0{listing.root}\0{listing.fingerprint()}"
    stored = cache / "trees" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(stored.read_text())
        return {files[int(position)].path: str(reason) for position, reason in known.items()}
    except (OSError, ValueError, AttributeError, IndexError):
        pass  # not judged yet, or a verdict that was cut short

    def judge_chunk(start: int) -> dict[int, str]:
        chunk = range(start, min(start + _CHUNK, len(files)))
        return {at: reason for at in chunk if (reason := _judged(files[at].path, listing.root, judge)) is not None}

    progress(what, 0, len(files))
    found: dict[int, str] = {}
    # Damaged EXIF data and great size are no defects. Filters are the process's, so they are set outside its threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        starts = range(0, len(files), _CHUNK)
        for some in in_threads(
            judge_chunk, starts, lambda done: progress(what, min(done * _CHUNK, len(files)), len(files))
        ):
            found |= some
    # What cannot be read today may be readable tomorrow, and no modification time would tell.
    if not any(reason.startswith("cannot be read") for reason in found.values()):
        with storage_errors(stored.parent):
            stored.parent.mkdir(parents=True, exist_ok=True)
            partial = stored.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps(found))
            partial.replace(stored)
    return {files[at].path: reason for at, reason in found.items()}


def _judged(path: str, root: Path, judge: Callable[[Path], str | None]) -> str | None:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return judge(root / path)
