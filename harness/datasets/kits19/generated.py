"""Generated CT volumes with labels: to a loader what KiTS19 is."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.generate import GeneratedDataset, draw_log_normal
from harness.datasets.pictures import Field, smooth_noise
from harness.datasets.worker import Content
from harness.errors import ConfigError
from harness.system.values import check_number
from loaders.pipeline.volumes import MIN_EDGE, SPACING_MM, normalise

if TYPE_CHECKING:
    import pyarrow as pa


_VOXEL_BYTES: Final = {"numpy": 5, "nifti": 2}
"""By form: a float32 and a uint8, as MLPerf's preprocessing leaves them; an int16 and a uint8, packed, a little more
than it comes to."""
_MEAN_BYTES, _MIN_BYTES, _MAX_BYTES = 136e6, 30e6, 375e6
"""Of a sample before preprocessing (MinatoLoader, section 2.2), image and labels together."""
_SPREAD: Final = 0.466
"""Deviation / mean of a sample's bytes: MLPerf Storage, unet3d_a100.yaml, 68.3 MB of 146.6 MB."""
_DEPTH: Final = (0.5, 1.1)
"""Smallest and greatest depth / width of a volume: an abdomen, or an abdomen with the chest."""

Shape = tuple[int, int, int]
"""Depth, height and width in voxels."""

_AIR_HU, _FAT_HU, _VISCERA_HU, _BONE_HU = -1000.0, -100.0, 25.0, 450.0
_NOISE_HU: Final = 14.0
_VISCERA_SPREAD_HU: Final = 60.0
_NONE, _KIDNEY, _TUMOUR = 0, 1, 2
_EDGE: Final = 512
"""Edge of the periodic fields of noise from which slices are cut."""

_STRATEGIES: Final = {"i": zlib.Z_HUFFMAN_ONLY, "u": zlib.Z_RLE}
"""By kind of number: noisy values have no repeats to search for, labels have runs alone; twice as fast as the default
for 1.1 times the bytes."""
_LEVEL, _GZIP = 1, 31
"""Of compression, as nibabel has it by default; zlib's window bits for a gzip member, whose header then holds no time:
equal volumes make equal files."""


@dataclass(frozen=True)
class Kits19Like(GeneratedDataset):
    """CT-like volumes in KiTS19's layout, their sizes log-normal between the published bounds, times `scale`."""

    version: ClassVar[int] = 4

    samples: int = 20
    scale: float = 0.02
    """Of the volumes' sizes; 1.0 means 30 to 375 MB with a mean of 136 MB (MinatoLoader, section 2.2)."""
    form: str = "numpy"
    """`numpy`: MLPerf's preprocessed case_00000_{x,y}.npy; `nifti`: case_00000/{imaging,segmentation}.nii.gz. The same
    case is the same volume in either."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(
            "dataset.scale", self.scale, minimum=1e-4, maximum=10
        )  # 14 voxels a side have room for kidneys and tumours
        if self.form not in _VOXEL_BYTES:
            raise ConfigError(f"dataset.form={self.form!r}: expected one of {', '.join(_VOXEL_BYTES)}")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Depth, height and width of every case in voxels."""
        return self._shapes(self.samples)

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the bytes of every case of a set of `count`, shape (count,); an upper bound for nifti."""
        return np.array([math.prod(shape) * _VOXEL_BYTES[self.form] for shape in self._shapes(count)], np.int64)

    def path(self, sample_id: int) -> str:
        """Return the path of a case's image."""
        return f"case_{sample_id:05d}" + ("_x.npy" if self.form == "numpy" else "/imaging.nii.gz")

    def label_path(self, sample_id: int) -> str:
        """Return the path of a case's labels."""
        return f"case_{sample_id:05d}" + ("_y.npy" if self.form == "numpy" else "/segmentation.nii.gz")

    def files(self, sample_id: int) -> Iterator[tuple[str, Content | Iterable[Content]]]:
        """Yield path and content of a case's image, then of its labels, slice by slice."""
        shape = self.shapes[sample_id]
        labels = np.empty(shape, np.uint8)
        made = _slices(self.seed, sample_id, shape, labels)
        image, segmentation = self.path(sample_id), self.label_path(sample_id)
        if self.form == "numpy":
            values = (normalise(hu.astype(np.float32)).data for hu in made)
            yield image, chain((_numpy_header((1, *shape), "<f4"),), values)
            yield segmentation, (_numpy_header((1, *shape), "|u1"), labels.data)
        else:
            volume = np.empty(shape, np.int16)
            for z, hu in enumerate(made):
                volume[z] = hu
            yield image, _packed_nifti(volume, SPACING_MM)
            yield segmentation, _packed_nifti(labels, SPACING_MM)

    def columns(self) -> Mapping[str, pa.Array]:
        """Return `label_path`: the path of every case's labels."""
        import pyarrow as pa

        return {"label_path": pa.array([self.label_path(sample_id) for sample_id in range(self.samples)])}

    def _shapes(self, count: int) -> tuple[Shape, ...]:
        rng = np.random.default_rng([self.seed, 0x51])
        sigma = math.sqrt(math.log1p(_SPREAD**2))
        published = np.clip(draw_log_normal(rng, count, _MEAN_BYTES, sigma), _MIN_BYTES, _MAX_BYTES)
        wanted = published / _VOXEL_BYTES["numpy"] * self.scale
        min_edge = MIN_EDGE * self.scale ** (1 / 3)
        pairs = zip(wanted.tolist(), rng.uniform(*_DEPTH, count).tolist(), strict=True)
        return tuple(_shape(voxels, ratio, min_edge) for voxels, ratio in pairs)


def _shape(voxels: float, ratio: float, min_edge: float) -> Shape:
    depth = max(min_edge, (voxels * ratio**2) ** (1 / 3))
    edge = max(min_edge, math.sqrt(voxels / depth))
    return max(8, round(voxels / round(edge) ** 2)), max(8, round(edge)), max(8, round(edge))


def _slices(seed: int, sample_id: int, shape: Shape, labels: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.int16]]:
    """Yield a case slice by slice as int16 Hounsfield units of shape (height, width), and fill `labels` beside it.

    A body of fat and viscera lies in air, with a spine, two kidneys and one to three tumours on them. `labels` is uint8
    of `shape`: 0 background, 1 kidney, 2 tumour; every case has both.
    """
    rng = np.random.default_rng([seed, 0x1D, sample_id])
    _, height, width = shape
    y, x = np.ogrid[:height, :width]
    across, deep = rng.uniform(0.38, 0.47) * width, rng.uniform(0.28, 0.36) * height
    r = ((x - width / 2) / across) ** 2 + ((y - height / 2) / deep) ** 2
    inner = rng.uniform(0.58, 0.76)
    plane = np.select([r > 1, r > inner], [_AIR_HU, _FAT_HU], _VISCERA_HU).astype(np.float32)
    texture = np.where(r > inner, 0.0, _VISCERA_SPREAD_HU).astype(np.float32)
    bodies = _bodies(rng, np.array(shape, float))
    grain, soft = _fields(seed)
    drift = rng.integers(0, _EDGE, 2)
    for z in range(shape[0]):
        hu = plane + _NOISE_HU * _patch(grain, rng.integers(0, _EDGE, 2), shape)
        hu += texture * _patch(soft, drift + np.array([2 * z, z]), shape)
        labels[z] = _NONE
        for (cz, cy, cx), (rz, ry, rx), level, label in bodies:
            # Bodies keep a little of the noise; those that come later cover the earlier ones.
            if abs(z - cz) <= rz:
                inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 <= 1 - ((z - cz) / rz) ** 2
                hu[inside] = hu[inside] * 0.15 + level
                labels[z][inside] = label
        yield np.rint(np.clip(hu, -1024, 3071)).astype(np.int16)


def _bodies(rng: np.random.Generator, shape: npt.NDArray[np.float64]) -> list[tuple[Any, Any, float, int]]:
    """Return centre and radii in voxels, Hounsfield units and label of the spine, the kidneys and the tumours."""
    depth, _, width = shape
    bodies: list[tuple[Any, Any, float, int]] = [(shape * (0.5, 0.7, 0.5), shape * (9.0, 0.05, 0.06), _BONE_HU, _NONE)]
    long = 0.13 * min(1.0, 0.75 * width / depth)
    enhanced = rng.uniform(140, 210)
    for side in (-1, 1):
        centre = (rng.uniform(0.38, 0.48), rng.uniform(0.56, 0.62), 0.5 + side * rng.uniform(0.16, 0.2))
        radii = shape * (long, 0.055, 0.05) * rng.uniform(0.9, 1.15)
        bodies.append((shape * centre, np.maximum(1.6, radii), enhanced, _KIDNEY))
    for _ in range(rng.choice([1, 2, 3], p=[0.85, 0.1, 0.05])):
        at, radii, _, _ = bodies[rng.integers(1, 3)]
        direction = rng.standard_normal(3)
        centre = np.clip(at + radii * direction / np.linalg.norm(direction), 1.0, shape - 2.0)
        radius = max(1.2, float(np.exp(rng.normal(-3.1, 0.4))) * width)
        bodies.append((centre, (radius, radius, radius), rng.uniform(50, 110), _TUMOUR))
    return bodies


def _patch(field: Field, at: npt.NDArray[np.int64], shape: Shape) -> Field:
    """Cut a patch of a periodic field; float32 of shape (height, width)."""
    (y, x), (_, height, width) = (at % _EDGE).tolist(), shape
    return field.take(range(y, y + height), 0, mode="wrap").take(range(x, x + width), 1, mode="wrap")


@lru_cache(maxsize=1)
def _fields(seed: int) -> tuple[Field, Field]:
    """Return the grain of the scanner and the soft texture of viscera, periodic fields of unit deviation."""
    rng = np.random.default_rng([seed, 0x7E])
    return smooth_noise(rng, _EDGE, 0.4), smooth_noise(rng, _EDGE, 1.4)


def _numpy_header(shape: tuple[int, ...], kind: str) -> bytes:
    """Return what precedes the values of a C-ordered array in a .npy file; `kind` is NumPy's type string."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _packed_nifti(volume: npt.NDArray[Any], spacing_mm: tuple[float, float, float]) -> Iterator[bytes]:
    """Yield a .nii.gz file in parts; `volume` is int16 or uint8 of shape (depth, height, width).

    The affine turns slices, rows and columns into feet-to-head, front-to-back and left-to-right millimetres, as that
    of KiTS19's cases does.
    """
    from nibabel.nifti1 import Nifti1Image

    depth, height, width = spacing_mm
    affine = np.array([[0, 0, -width, 0], [0, -height, 0, 0], [-depth, 0, 0, 0], [0, 0, 0, 1]], np.float64)
    image: Any = Nifti1Image  # nibabel is not typed
    header = image(volume, affine).header
    header.set_qform(affine, "scanner")
    header.set_xyzt_units("mm")
    header["magic"], header["vox_offset"] = b"n+1", 352
    header.set_slope_inter(1.0, 0.0)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP, zlib.DEF_MEM_LEVEL, _STRATEGIES[volume.dtype.kind])
    yield packer.compress(header.binaryblock + bytes(4))
    for column in range(volume.shape[2]):  # NIfTI's first axis is its fastest
        yield packer.compress(volume[:, :, column].tobytes(order="F"))
    yield packer.flush()
