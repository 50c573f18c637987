"""A made-up dataset that is to a loader what COCO is."""

from __future__ import annotations

from dataclasses import dataclass

from harness.datasets.checks import check_count, check_name, check_scale
from harness.datasets.coco.recipe import CocoRecipe
from harness.datasets.generate import GeneratedDataset

__all__ = ["CocoLike"]


@dataclass(frozen=True, slots=True)
class CocoLike(GeneratedDataset):
    """Pictures of 0.1 to 1 MB, mean 0.8 MB (MinatoLoader, section 2.2), times `scale`, in train2017's layout.

    The pictures of the real COCO are 0.84 MB when decoded and 0.16 MB as they lie on disk, which `scale=0.2` makes.
    """

    name: str
    samples: int = 60
    scale: float = 0.2
    """Of the published sizes in bytes."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_count("seed", self.seed, least=0)
        check_scale(self.scale, least=0.01, most=10)

    @property
    def recipe(self) -> CocoRecipe:
        """Return what is to be made."""
        return CocoRecipe(self.samples, float(self.scale), self.seed)
