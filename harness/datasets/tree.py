"""Real trees: their common settings, and the tree of images that ImageNet is."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.datasets import DatasetHandle, Progress
from harness.datasets.checks import check_count, check_name
from harness.datasets.scan import SampleFile, list_tree
from harness.datasets.verify import verdicts
from harness.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ImageTree", "RealTree"]


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
        check_name(self.name)
        if not isinstance(self.root, str) or not self.root.strip():
            raise ConfigError(f"dataset.root={self.root!r}: expected {self.layout}")
        if self.on_error not in {"raise", "skip"}:
            raise ConfigError(f"dataset.on_error={self.on_error!r}: expected one of raise, skip")
        if self.limit is not None:
            check_count("limit", self.limit)

    @abstractmethod
    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """List the samples, judge each that was not judged before, and return those that are whole.

        Raises DatasetError naming dataset.root, or the first sample at fault when on_error is `raise`.
        """

    @property
    def folder(self) -> Path:
        """The root as an absolute path."""
        return Path(self.root).expanduser().absolute()

    def handle(
        self,
        kept: Sequence[SampleFile],
        faults: Mapping[str, str],
        facts: Mapping[str, Any],
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
            remedy = "mend what is at fault, or leave it out with dataset.on_error=skip"
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
        content = hashlib.sha256("".join(hashed).encode()).hexdigest()[:16]
        return DatasetHandle(self.name, samples, tuple(shown), content, about)


@dataclass(frozen=True)
class ImageTree(RealTree):
    """The images of root/class/name.{jpg,jpeg,png}, labelled by the order of their class folders."""

    noun: ClassVar[str] = "images"
    layout: ClassVar[str] = "a folder of class/name.jpg"

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Scan the tree, judge every file that was not judged before, and return what is whole."""
        hint = " (or .jpeg, .png, in any case), for ImageNet the folder that holds n01440764 and its like"
        suffixes = (".jpg", ".jpeg", ".png")
        listing = list_tree(self.folder, noun=self.noun, suffixes=suffixes, layout="class/name.jpg", hint=hint)
        listing = listing.limited(self.limit, self.seed)
        broken = verdicts(listing, cache, f"checking {self.name}", progress)
        kept = [file for file in listing.files if file.path not in broken]
        facts = {"classes": len(listing.classes), "files_ignored": listing.ignored}
        hashed = (f"{file.path}\0{file.label}\0{file.size}\0{file.mtime_ns}\n" for file in kept)
        return self.handle(kept, broken, facts, hashed)
