"""Judges whether image files are whole, without decoding those that plainly are."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Final

from PIL import Image

from harness.datasets.threads import in_threads

__all__ = ["defect", "defects"]

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


def defects(
    paths: Sequence[Path], progress: Callable[[int], None], judge: Callable[[Path], str | None] = defect
) -> dict[int, str]:
    """Return what is wrong, by position, with those files that are not whole; `progress` hears how many are done.

    `judge` says of one file what is wrong with it.
    """

    def judge_chunk(start: int) -> list[tuple[int, str]]:
        chunk = enumerate(paths[start : start + _CHUNK], start)
        return [(position, reason) for position, path in chunk if (reason := judge(path)) is not None]

    # Damaged EXIF data and great size are no defects. Filters are the process's, so they are set outside its threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = in_threads(
            judge_chunk, range(0, len(paths), _CHUNK), lambda done: progress(min(done * _CHUNK, len(paths)))
        )
    return dict(chain.from_iterable(chunks))


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
