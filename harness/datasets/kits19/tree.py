"""A real KiTS19, as its challenge gives it away or as MLPerf preprocesses it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.datasets.checks import check_tree
from harness.datasets.faults import check_faults
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.kits19.cases import defect, list_cases
from harness.datasets.scan import limited
from harness.datasets.threads import in_threads

__all__ = ["Kits19Tree"]


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
        listed, unlabelled = list_cases(root)
        cases = limited(listed, self.limit, self.seed)
        progress(f"checking {self.name}", 0, len(cases))
        found = in_threads(
            lambda case: defect(root, case), cases, lambda done: progress(f"checking {self.name}", done, len(cases))
        )
        broken = {case.image: fault for case, fault in zip(cases, found, strict=True) if fault is not None}
        kept = [case for case in cases if case.image not in broken]
        check_faults(root, dict(broken.values()), kept=len(kept), noun="cases", on_error=self.on_error)
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
        return DatasetHandle(self.name, samples, tuple(broken), digest.hexdigest()[:16], description)
