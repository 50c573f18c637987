"""A real tree of images, ImageNet for one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.datasets.checks import check_tree
from harness.datasets.faults import check_faults
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.scan import Listing, SampleFile, list_tree
from harness.datasets.verdicts import shown, verdicts

__all__ = ["ImageTree"]


@dataclass(frozen=True, slots=True)
class ImageTree:
    """The images of root/class/name.{jpg,jpeg,png}, labelled by the order of their class folders."""

    name: str
    root: str
    on_error: str = "raise"
    """Of a file that is not whole: `raise` names it, `skip` leaves it out and reports it."""
    limit: int | None = None
    """Take only so many samples, chosen by `seed`; only these are judged."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_tree(self.name, self.root, self.on_error, self.limit, expected="expected a folder of class/name.jpg")

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Scan the tree, judge every file that was not judged before, and return what is whole.

        Raises DatasetError naming dataset.root, or the first broken file when on_error is `raise`.
        """
        from loaders.base import Samples

        root = Path(self.root).expanduser().absolute()
        listing = list_tree(root).limited(self.limit, self.seed)
        broken = verdicts(listing, cache, f"checking {self.name}", progress)
        kept = [file for position, file in enumerate(listing.files) if position not in broken]
        faults = {shown(listing.files[position].path): broken[position] for position in sorted(broken)}
        check_faults(root, faults, kept=len(kept), noun="images", on_error=self.on_error)
        samples = Samples(
            root,
            tuple(file.path for file in kept),
            np.array([file.label for file in kept], np.int64),
            np.array([file.size for file in kept], np.int64),
        )
        description = self._description(listing, samples.sizes)
        return DatasetHandle(self.name, samples, tuple(faults), _content_hash(kept), description)

    def _description(self, listing: Listing, sizes: npt.NDArray[np.int64]) -> dict[str, object]:
        return {
            "root": str(listing.root),
            "on_error": self.on_error,
            "samples": len(sizes),
            "classes": len(listing.classes),
            "bytes": int(sizes.sum()),
            "mean_kb": round(float(sizes.mean()) / 1000, 1),
            "files_ignored": listing.ignored,
        }


def _content_hash(files: Sequence[SampleFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.label}\0{file.size}\0{file.mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
