"""Real trees: their common settings, and the tree of images that ImageNet is."""

from __future__ import annotations

import json
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from PIL import Image

from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import short_hash, storage_errors
from harness.datasets.scan import SampleFile, in_threads, limited, list_tree
from harness.errors import ConfigError, DatasetError
from harness.system.values import check_count, check_name

if TYPE_CHECKING:
    import pyarrow as pa


Judge = Callable[[Path], str | None]
"""Returns why a file is broken. The reason begins with "cannot be read" where the file may be whole another time."""

_VERSION: Final = 1
"""Raised when files are judged in another way, so that no older verdict is kept."""
_CHUNK: Final = 64
_TAIL_BYTES: Final = 12
_SMALL_BYTES: Final = 1024
"""Files this small are decoded in any case."""
_ENDS: Final = {"JPEG": b"\xff\xd9", "PNG": b"\0\0\0\0IEND\xaeB`\x82"}
"""Formats that every loader's engine decodes, whatever the file's name ends with, and how they end."""


@dataclass(frozen=True)
class RealTree(ABC):
    """A folder of the user's with the samples of a known dataset."""

    noun: ClassVar[str]
    """What its samples are called in messages."""
    layout: ClassVar[str]
    """What messages expect of the root."""

    name: str
    root: str
    on_error: str = "raise"
    """Of a sample that is missing, broken or wrongly described: `raise` names it, `skip` leaves it out, reported."""
    limit: int | None = None
    """Take only so many samples, chosen by `seed`; only these are judged."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name("dataset.name", self.name)
        if not isinstance(self.root, str) or not self.root.strip():
            raise ConfigError(f"dataset.root={self.root!r}: expected {self.layout}")
        if self.on_error not in {"raise", "skip"}:
            raise ConfigError(f"dataset.on_error={self.on_error!r}: expected one of raise, skip")
        if self.limit is not None:
            check_count("dataset.limit", self.limit)

    @abstractmethod
    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """List the samples, judge each that was not judged before, and return those that are whole.

        Raises DatasetError naming dataset.root, or the first sample at fault when on_error is `raise`.
        """

    @property
    def folder(self) -> Path:
        """The root as an absolute path."""
        return Path(self.root).expanduser().absolute()

    def verdicts(self, files: Sequence[SampleFile], cache: Path, progress: Progress, judge: Judge) -> dict[str, str]:
        """Return the reasons why files are broken, by path, from the cache when the files are as they were."""
        judged = f"{_VERSION}\0{judge.__module__}.{judge.__qualname__}\0{self.folder}\0"
        listed = (f"{file.path}\0{file.size}\0{file.mtime_ns}\n" for file in files)
        stored = cache / "trees" / f"{short_hash(chain((judged,), listed))}.json"
        try:
            known = json.loads(stored.read_text())
            return {files[int(position)].path: str(reason) for position, reason in known.items()}
        except (OSError, ValueError, AttributeError, IndexError):
            pass  # not judged yet, or a verdict that was cut short

        def judge_chunk(start: int) -> dict[int, str]:
            chunk = range(start, min(start + _CHUNK, len(files)))
            return {at: reason for at in chunk if (reason := _judged(files[at].path, self.folder, judge)) is not None}

        def report_chunks(chunks: int) -> None:
            progress(f"checking {self.name}", min(chunks * _CHUNK, len(files)), len(files))

        report_chunks(0)
        # Damaged EXIF data and great size are no defects. Filters are the process's, so they are set here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chunks = in_threads(judge_chunk, range(0, len(files), _CHUNK), report_chunks)
        found = {at: reason for some in chunks for at, reason in some.items()}
        # A file that cannot be read today may be readable tomorrow, with the same modification time.
        if not any(reason.startswith("cannot be read") for reason in found.values()):
            with storage_errors(stored.parent):
                stored.parent.mkdir(parents=True, exist_ok=True)
                partial = stored.with_suffix(f".{os.getpid()}.partial")
                partial.write_text(json.dumps(found))
                partial.replace(stored)
        return {files[at].path: reason for at, reason in found.items()}

    def handle(
        self,
        kept: Sequence[SampleFile],
        faults: Mapping[str, str],
        facts: Mapping[str, object],
        hashed: Iterable[str],
        columns: Mapping[str, pa.Array] | None = None,
    ) -> DatasetHandle:
        """Return the dataset of the files that are kept.

        `faults` are the reasons why samples are left out, by path; `facts` go to provenance.json, `hashed` into the
        content hash. Raises DatasetError naming the first fault, unless faults are skipped and samples are left.
        """
        from loaders.base import Samples

        shown = {
            path.encode(errors="surrogateescape").decode(errors="backslashreplace"): faults[path] for path in faults
        }
        if shown and not (kept and self.on_error == "skip"):
            (where, reason), *others = shown.items()
            more = f", and {len(others)} more of {len(kept) + len(shown)} {self.noun} are at fault" if others else ""
            remedy = "repair the file, or leave it out with dataset.on_error=skip"
            end = remedy if self.on_error == "raise" else "no sample is left"
            raise DatasetError(f"dataset.root={self.folder}: {where} {reason}{more}; {end}")
        if not kept:
            raise DatasetError(f"dataset.root={self.folder}: there are no {self.noun} to take; no sample is left")
        labels, sizes = (np.array([getattr(one, key) for one in kept], np.int64) for key in ("label", "size"))
        samples = Samples(self.folder, tuple(one.path for one in kept), labels, sizes, columns or {})
        about = {
            "root": str(self.folder),
            "on_error": self.on_error,
            "samples": len(samples),
            "bytes": int(sizes.sum()),
            "mean_kb": round(float(sizes.mean()) / 1000, 1),
            **facts,
        }
        return DatasetHandle(self.name, samples, tuple(shown), short_hash(hashed), about)


@dataclass(frozen=True)
class ImageTree(RealTree):
    """The images of root/class/name.{jpg,jpeg,png}, labelled by the order of their class folders."""

    noun: ClassVar[str] = "images"
    layout: ClassVar[str] = "a folder of class/name.jpg"

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Scan the tree, judge every file that was not judged before, and return the whole ones."""
        hint = " (or .jpeg, .png, in any case), for ImageNet the folder that holds n01440764 and its like"
        suffixes = (".jpg", ".jpeg", ".png")
        listing = list_tree(self.folder, noun=self.noun, suffixes=suffixes, layout="class/name.jpg", hint=hint)
        files = limited(listing.files, self.limit, self.seed)
        broken = self.verdicts(files, cache, progress, defect)
        kept = [file for file in files if file.path not in broken]
        facts = {"classes": listing.classes, "files_ignored": listing.ignored}
        hashed = (f"{file.path}\0{file.label}\0{file.size}\0{file.mtime_ns}\n" for file in kept)
        return self.handle(kept, broken, facts, hashed)


def defect(path: Path) -> str | None:
    """Return why an image file is broken; None for a whole one.

    A file that ends as its format demands is taken for whole; any other is decoded, which distinguishes one that
    was cut short from one with further bytes after its end.
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


def _judged(path: str, root: Path, judge: Judge) -> str | None:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return judge(root / path)
