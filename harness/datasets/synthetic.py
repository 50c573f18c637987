"""The made-up dataset of large samples."""

from __future__ import annotations

from dataclasses import dataclass

from harness.datasets.checks import check_count, check_name, check_size_kb
from harness.datasets.generate import GeneratedDataset
from harness.datasets.image_recipe import ImageRecipe

__all__ = ["Synthetic"]


@dataclass(frozen=True, slots=True)
class Synthetic(GeneratedDataset):
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

    @property
    def recipe(self) -> ImageRecipe:
        """Return what is to be made."""
        return ImageRecipe(self.samples, 1, self.mean_kb * 1000.0, 0.0, self.seed)
