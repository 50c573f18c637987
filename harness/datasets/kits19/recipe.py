"""What a made-up KiTS19 is: how many cases of which sizes, and the files of every case from its id alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.kits19.anatomy import Shape, slices
from harness.datasets.kits19.files import numpy_header, packed_nifti
from harness.datasets.quantiles import normal_deviates
from harness.datasets.recipe import Content, recipe_key
from loaders.pipelines.hounsfield import LEAST_EDGE, SPACING_MM, normalised

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMS", "Kits19Recipe"]

FORMS: Final = ("numpy", "nifti")
_VERSION: Final = 2
"""Raised with every change that alters a volume, so that no older tree is taken for a new one."""

_MEAN_BYTES: Final = 136e6
_LEAST_BYTES: Final = 30e6
_MOST_BYTES: Final = 375e6
"""Of a sample before preprocessing (MinatoLoader, section 2.2), image and labels together."""
_SPREAD: Final = 0.466
"""Deviation / mean of a sample's bytes: MLPerf Storage, unet3d_a100.yaml, 68.3 MB of 146.6 MB."""
_VOXEL_BYTES: Final = 5
"""A float32 and a uint8, as MLPerf's preprocessing leaves them."""
_NIFTI_VOXEL_BYTES: Final = 2
"""An int16 and a uint8, packed; a little more than it comes to."""
_DEPTH: Final = (0.5, 1.1)
"""Least and greatest depth / width of a volume: an abdomen, or an abdomen with the chest."""


@dataclass(frozen=True)
class Kits19Recipe:
    """Cases whose sizes are log-normal between the published bounds; equal recipes make equal bytes."""

    samples: int
    scale: float
    """Of every size in bytes."""
    form: str
    """numpy or nifti; the same case is the same volume in either."""
    seed: int
    noun: ClassVar[str] = "volumes"
    together: ClassVar[int] = 1

    def key(self) -> str:
        """Return 16 hex digits that tell this recipe from any other."""
        return recipe_key(self, _VERSION)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Depth, height and width of every case in voxels."""
        rng = np.random.default_rng([self.seed, 0x51])
        sigma = math.sqrt(math.log1p(_SPREAD**2))
        middle = math.log(_MEAN_BYTES) - sigma**2 / 2
        published = np.clip(np.exp(middle + sigma * normal_deviates(rng, self.samples)), _LEAST_BYTES, _MOST_BYTES)
        wanted = published / _VOXEL_BYTES * self.scale
        ratios = rng.uniform(*_DEPTH, self.samples)
        least = LEAST_EDGE * self.scale ** (1 / 3)
        return tuple(_shape(float(v), float(r), least) for v, r in zip(wanted, ratios, strict=True))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of every sample in bytes, image and labels together, shape (samples,); for nifti the most it may be."""
        each = _VOXEL_BYTES if self.form == "numpy" else _NIFTI_VOXEL_BYTES
        return np.array([math.prod(shape) * each for shape in self.shapes], np.int64)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Zeros of shape (samples,): a volume has no class."""
        return np.zeros(self.samples, np.int64)

    def paths(self) -> tuple[str, ...]:
        """Return the path of every case's image."""
        return tuple(self._files(sample_id)[0] for sample_id in range(self.samples))

    def files(self, sample_id: int) -> Iterator[tuple[str, Content | Iterable[Content]]]:
        """Yield path and content of a case's image, then of its labels, slice by slice."""
        shape = self.shapes[sample_id]
        labels = np.empty(shape, np.uint8)
        made = slices(self.seed, sample_id, shape, labels)
        image, segmentation = self._files(sample_id)
        if self.form == "numpy":
            yield image, _normalised_slices(shape, made)
            yield segmentation, iter((numpy_header((1, *shape), "|u1"), labels.data))
        else:
            volume = np.empty(shape, np.int16)
            for z, hu in enumerate(made):
                volume[z] = hu
            yield image, packed_nifti(volume, SPACING_MM)
            yield segmentation, packed_nifti(labels, SPACING_MM)

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield nothing: every file is a case's."""
        yield from ()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return `label_path`: the path of every case's labels."""
        import pyarrow as pa

        return {"label_path": pa.array([self._files(sample_id)[1] for sample_id in range(self.samples)])}

    def describe(self) -> Mapping[str, Any]:
        """Return the least and greatest shape."""
        by_size = sorted(self.shapes, key=math.prod)
        return {"least_shape": list(by_size[0]), "greatest_shape": list(by_size[-1])}

    def _files(self, sample_id: int) -> tuple[str, str]:
        case = f"case_{sample_id:05d}"
        if self.form == "numpy":
            return f"{case}_x.npy", f"{case}_y.npy"
        return f"{case}/imaging.nii.gz", f"{case}/segmentation.nii.gz"


def _shape(voxels: float, ratio: float, least: float) -> Shape:
    depth = max(least, (voxels * ratio**2) ** (1 / 3))
    edge = max(least, math.sqrt(voxels / depth))
    return max(8, round(voxels / round(edge) ** 2)), max(8, round(edge)), max(8, round(edge))


def _normalised_slices(shape: Shape, made: Iterable[npt.NDArray[np.int16]]) -> Iterator[Content]:
    yield numpy_header((1, *shape), "<f4")
    for hu in made:
        yield normalised(hu.astype(np.float32)).data
