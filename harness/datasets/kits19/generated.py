"""A made-up dataset that is to a loader what KiTS19 is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.datasets.checks import check_count, check_name, check_scale
from harness.datasets.generate import GeneratedDataset
from harness.datasets.kits19.recipe import FORMS, Kits19Recipe
from harness.errors import ConfigError

__all__ = ["Kits19Like"]

_LEAST_SCALE: Final = 1e-4
"""Volumes of 14 voxels a side: the least in which there is room for kidneys and tumours."""


@dataclass(frozen=True, slots=True)
class Kits19Like(GeneratedDataset):
    """CT-like volumes in KiTS19's layout, their sizes those of the real set times `scale`."""

    name: str
    samples: int = 20
    scale: float = 0.02
    """Of the volumes' sizes; 1.0 means 30 to 375 MB with a mean of 136 MB (MinatoLoader, section 2.2)."""
    form: str = "numpy"
    """`numpy`: MLPerf's preprocessed case_00000_{x,y}.npy; `nifti`: case_00000/{imaging,segmentation}.nii.gz."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_count("seed", self.seed, least=0)
        check_scale(self.scale, least=_LEAST_SCALE, most=10)
        if self.form not in FORMS:
            raise ConfigError(f"dataset.form={self.form!r}: expected one of {', '.join(FORMS)}")

    @property
    def recipe(self) -> Kits19Recipe:
        """Return what is to be made."""
        return Kits19Recipe(self.samples, float(self.scale), self.form, self.seed)
