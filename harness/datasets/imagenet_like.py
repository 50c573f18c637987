"""A made-up dataset that is to a loader what ImageNet is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.datasets.checks import check_count, check_name, check_size_kb
from harness.datasets.generate import GeneratedDataset
from harness.datasets.image_recipe import ImageRecipe

__all__ = ["ImagenetLike"]

_SIGMA: Final = 0.5
"""Deviation of ln(size): nine in ten files lie between 45 and 231 kB when the mean is 115 kB."""


@dataclass(frozen=True, slots=True)
class ImagenetLike(GeneratedDataset):
    """JPEGs of about 500 x 375 pixels in class folders, their sizes log-normal.

    The mean of 115 kB is ImageNet's (114 660 bytes in the MLPerf Storage configs of ResNet-50).
    """

    name: str
    samples: int = 500
    classes: int = 10
    mean_kb: float = 115.0
    """Mean encoded size in kB of 1000 bytes."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_count("classes", self.classes, most=self.samples)
        check_size_kb("mean_kb", self.mean_kb)
        check_count("seed", self.seed, least=0)

    @property
    def recipe(self) -> ImageRecipe:
        """Return what is to be made."""
        return ImageRecipe(self.samples, self.classes, self.mean_kb * 1000.0, _SIGMA, self.seed)
