"""Generated CT volumes with labels: to a loader what KiTS19 is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.checks import check_scale
from harness.datasets.draws import normal_deviates
from harness.datasets.generate import Content, GeneratedDataset
from harness.datasets.kits19.volumes import Shape, numpy_header, packed_nifti, slices
from harness.errors import ConfigError
from loaders.pipelines.hounsfield import LEAST_EDGE, SPACING_MM, normalised

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Kits19Like"]

_VOXEL_BYTES: Final = {"numpy": 5, "nifti": 2}
"""By form: a float32 and a uint8, as MLPerf's preprocessing leaves them; an int16 and a uint8, packed, a little more
than it comes to."""
_MEAN_BYTES: Final = 136e6
_MIN_BYTES: Final = 30e6
_MAX_BYTES: Final = 375e6
"""Of a sample before preprocessing (MinatoLoader, section 2.2), image and labels together."""
_SPREAD: Final = 0.466
"""Deviation / mean of a sample's bytes: MLPerf Storage, unet3d_a100.yaml, 68.3 MB of 146.6 MB."""
_DEPTH: Final = (0.5, 1.1)
"""Least and greatest depth / width of a volume: an abdomen, or an abdomen with the chest."""


@dataclass(frozen=True)
class Kits19Like(GeneratedDataset):
    """CT-like volumes in KiTS19's layout, their sizes log-normal between the published bounds, times `scale`."""

    noun: ClassVar[str] = "volumes"
    version: ClassVar[int] = 3

    samples: int = 20
    scale: float = 0.02
    """Of the volumes' sizes; 1.0 means 30 to 375 MB with a mean of 136 MB (MinatoLoader, section 2.2)."""
    form: str = "numpy"
    """`numpy`: MLPerf's preprocessed case_00000_{x,y}.npy; `nifti`: case_00000/{imaging,segmentation}.nii.gz. The same
    case is the same volume in either."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale(self.scale, least=1e-4, most=10)  # 14 voxels a side: the least with room for kidneys and tumours
        if self.form not in _VOXEL_BYTES:
            raise ConfigError(f"dataset.form={self.form!r}: expected one of {', '.join(_VOXEL_BYTES)}")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Depth, height and width of every case in voxels."""
        return self._shapes(self.samples)

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the bytes of every case of a set of `count`, shape (count,); for nifti the most that it may be."""
        return np.array([math.prod(shape) * _VOXEL_BYTES[self.form] for shape in self._shapes(count)], np.int64)

    def labels(self) -> npt.NDArray[np.int64]:
        """Return zeros of shape (samples,): a volume has no class."""
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

    def columns(self) -> Mapping[str, pa.Array]:
        """Return `label_path`: the path of every case's labels."""
        import pyarrow as pa

        return {"label_path": pa.array([self._files(sample_id)[1] for sample_id in range(self.samples)])}

    def facts(self) -> Mapping[str, Any]:
        """Return the least and greatest shape."""
        by_size = sorted(self.shapes, key=math.prod)
        return {"least_shape": list(by_size[0]), "greatest_shape": list(by_size[-1])}

    def _shapes(self, count: int) -> tuple[Shape, ...]:
        rng = np.random.default_rng([self.seed, 0x51])
        sigma = math.sqrt(math.log1p(_SPREAD**2))
        middle = math.log(_MEAN_BYTES) - sigma**2 / 2
        published = np.clip(np.exp(middle + sigma * normal_deviates(rng, count)), _MIN_BYTES, _MAX_BYTES)
        wanted = published / _VOXEL_BYTES["numpy"] * self.scale
        least = LEAST_EDGE * self.scale ** (1 / 3)
        pairs = zip(wanted.tolist(), rng.uniform(*_DEPTH, count).tolist(), strict=True)
        return tuple(_shape(voxels, ratio, least) for voxels, ratio in pairs)

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
