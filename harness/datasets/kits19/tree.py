"""A real KiTS19, as its challenge gives it away or as MLPerf preprocesses it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from harness.datasets.checks import check_tree
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.kits19.cases import Case, defect, list_cases
from harness.datasets.scan import limited
from harness.errors import DatasetError

__all__ = ["Kits19Tree"]

_THREADS: Final = 16
"""Far storage answers many reads as fast as one."""


@dataclass(frozen=True, slots=True)
class Kits19Tree:
    """The cases of a root: case_00000/{imaging,segmentation}.nii.gz, or case_00000_{x,y}.npy."""

    name: str
    root: str
    on_error: str = "raise"
    """Of a case that is not whole: `raise` names it, `skip` leaves it out and reports it."""
    limit: int | None = None
    """Take only so many cases, chosen by `seed`; only these are judged."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_tree(self.name, self.root, self.on_error, self.limit, expected="expected a folder of KiTS19's cases")

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """List the cases, judge their headers and lengths, and return what is whole; `cache` is not used.

        Raises DatasetError naming dataset.root, or the first broken case when on_error is `raise`.
        """
        import pyarrow as pa

        from loaders.base import Samples

        root = Path(self.root).expanduser().absolute()
        found, unlabelled = list_cases(root)
        cases = limited(found, self.limit, self.seed)
        broken = _defects(root, cases, f"checking {self.name}", progress)
        if broken and (self.on_error == "raise" or len(broken) == len(cases)):
            more = f", and {len(broken) - 1} more of {len(cases)} cases are broken" if len(broken) > 1 else ""
            remedy = (
                "replace what is broken, or leave it out with dataset.on_error=skip"
                if self.on_error == "raise"
                else "no case is left"
            )
            raise DatasetError(f"dataset.root={root}: {broken[min(broken)]}{more}; {remedy}")
        kept = [case for position, case in enumerate(cases) if position not in broken]
        stats = [((root / case.image).stat(), (root / case.labels).stat()) for case in kept]
        sizes = np.array([image.st_size + labels.st_size for image, labels in stats], np.int64)
        digest = hashlib.sha256()
        for case, files in zip(kept, stats, strict=True):
            for path, file in zip((case.image, case.labels), files, strict=True):
                digest.update(f"{path}\0{file.st_size}\0{file.st_mtime_ns}\n".encode())
        samples = Samples(
            root,
            tuple(case.image for case in kept),
            np.zeros(len(kept), np.int64),
            sizes,
            {"label_path": pa.array([case.labels for case in kept])},
        )
        description = {
            "root": str(root),
            "on_error": self.on_error,
            "form": "numpy" if kept[0].image.endswith(".npy") else "nifti",
            "samples": len(kept),
            "bytes": int(sizes.sum()),
            "mean_mb": round(float(sizes.mean()) / 1e6, 3),
            "cases_without_segmentation": unlabelled,
        }
        skipped = tuple(cases[position].image for position in sorted(broken))
        return DatasetHandle(self.name, samples, skipped, digest.hexdigest()[:16], description)


def _defects(root: Path, cases: Sequence[Case], what: str, progress: Progress) -> dict[int, str]:
    found: dict[int, str] = {}
    progress(what, 0, len(cases))
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kits19")
    try:
        for position, reason in enumerate(pool.map(lambda case: defect(root, case), cases)):
            if reason is not None:
                found[position] = reason
            progress(what, position + 1, len(cases))
    finally:
        pool.shutdown(cancel_futures=True)
    return found
