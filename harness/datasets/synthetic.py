"""The generated dataset of large samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness.datasets.imagenet_like import ImagenetLike


@dataclass(frozen=True)
class Synthetic(ImagenetLike):
    """JPEGs that are all of about one size, 2 MB as in EMLIO's figures 7 and 8 (section 5), in one class."""

    sigma: ClassVar[float] = 0.0

    samples: int = 100
    classes: int = 1
    mean_kb: float = 2000.0
