"""The made-up dataset of large samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.datasets.checks import check_count, check_name, check_size_kb
from harness.datasets.generate import generate
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.image_recipe import ImageRecipe

__all__ = ["Synthetic"]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """JPEGs that are all of about one size, 2 MB as in EMLIO's figures 7 and 8 (section 5), in one class."""

    name: str
    samples: int = 100
    mean_kb: float = 2000.0
    """Encoded size in kB of 1000 bytes."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_size_kb("mean_kb", self.mean_kb)
        check_count("seed", self.seed, least=0)

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Return the dataset, made in `cache` unless it is there; raises DatasetError when it cannot be."""
        recipe = ImageRecipe(self.samples, 1, self.mean_kb * 1000.0, 0.0, self.seed)
        return generate(self.name, recipe, cache, progress)
