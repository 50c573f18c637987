"""Generated pictures in classes: to a loader what ImageNet is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.generate import GeneratedDataset, draw_log_normal, draw_ratio
from harness.datasets.pictures import BITS_TOLERANCE, encode_to_size, patch, shape_of, tinted
from harness.datasets.worker import Content
from harness.system.values import check_count, check_number

_BITS_PER_PIXEL: Final = 4.9
"""Of a 500 x 375 JPEG of 115 kB."""
_RATIOS: Final = {4 / 3: 0.55, 3 / 4: 0.2, 3 / 2: 0.15, 1.0: 0.06, 16 / 9: 0.04}
"""Shares of pictures by their width / height."""
_HUES: Final = 0.618
"""Turns between the hues of neighbouring classes: the golden ratio keeps any number of them apart."""

_MAX_COMMENT: Final = 65533
"""Bytes of a JPEG's comment."""
_COMMENT_HEAD: Final = 4
"""Bytes of a comment's marker and length."""


@dataclass(frozen=True)
class ClassFolders(GeneratedDataset):
    """Samples of one file each, in folders of classes of equal size."""

    suffix: ClassVar[str]
    """What their names end with."""

    classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("dataset.classes", self.classes, maximum=self.samples)

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the class of every sample, shape (samples,)."""
        return np.arange(self.samples, dtype=np.int64) * self.classes // self.samples

    def path(self, sample_id: int) -> str:
        """Return class/name of a sample; sorted, they stand in the order of their ids."""
        label = self._class(sample_id)
        return f"c{label:05d}/c{label:05d}_{sample_id:08d}{self.suffix}"

    def _class(self, sample_id: int) -> int:
        return sample_id * self.classes // self.samples


@dataclass(frozen=True)
class ImagenetLike(ClassFolders):
    """JPEGs of about 500 x 375 pixels in class folders, their sizes log-normal and their classes of equal size.

    The mean of 115 kB is ImageNet's (114 660 bytes in the MLPerf Storage configs of ResNet-50).
    """

    version: ClassVar[int] = 5
    suffix: ClassVar[str] = ".jpg"
    sigma: ClassVar[float] = 0.5
    """Deviation of ln(size): nine in ten files lie between 45 and 231 kB when the mean is 115 kB."""

    samples: int = 500
    mean_kb: float = 115.0
    """Mean encoded size in kB of 1000 bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dataset.mean_kb", self.mean_kb, minimum=4, maximum=20_000, unit="kB")

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every sample of a set of `count`, shape (count,)."""
        rng = np.random.default_rng([self.seed, 0x51])
        return draw_log_normal(rng, count, self.mean_kb * 1000, self.sigma).astype(np.int64)

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one sample's only file."""
        yield self.path(sample_id), self.image(sample_id)

    def image(self, sample_id: int) -> bytes:
        """Return one sample as a JPEG file: a texture in a hue of its class."""
        return self._picture(sample_id, int(self.sizes[sample_id]), self.mean_kb * 1000)

    def _picture(self, sample_id: int, wanted: int, mean: float) -> bytes:
        """Return a JPEG file of about the `wanted` bytes, in a set whose files have the `mean`."""
        rng = np.random.default_rng([self.seed, 0x1D, sample_id])
        # A picture of twice the bytes has more pixels and more detail, about the square root of two of each.
        area = mean * 8 / _BITS_PER_PIXEL * math.sqrt(wanted / mean) * float(rng.lognormal(0.0, 0.08))
        ratio = draw_ratio(rng, _RATIOS, 0.02)
        texture, x, y = rng.integers(0, 1 << 31, 3).tolist()
        light, hue = int(rng.integers(-40, 41)), self._class(sample_id) * _HUES + float(rng.normal(0.0, 0.03))
        for _ in range(3):
            part = patch(self.seed, (texture, x, y), *shape_of(area, ratio, 16))
            image = encode_to_size(tinted(part, light, hue, 24), wanted)
            if abs(len(image) / wanted - 1) < BITS_TOLERANCE:
                break
            area *= wanted / len(image)  # no quality gives so many, or so few, bits per pixel
        return image


@dataclass(frozen=True)
class SmallPictures(ImagenetLike):
    """ImageNet-like files that take as long to read and less to decode: most of each is comments, as metadata is."""

    picture_share: float = 0.1
    """Share of a file's bytes that are its picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dataset.picture_share", self.picture_share, above=0, maximum=1)

    def image(self, sample_id: int) -> bytes:
        """Return one sample as a JPEG file whose segments of comments come before its picture."""
        wanted = int(self.sizes[sample_id])
        picture = self._picture(sample_id, int(self.picture_share * wanted), self.picture_share * self.mean_kb * 1000)
        left, parts = wanted - len(picture), [picture[:2]]
        while left > _COMMENT_HEAD:
            size = min(left, _MAX_COMMENT + _COMMENT_HEAD) - _COMMENT_HEAD
            # What the length counts has the two bytes that it takes (ITU-T T.81, B.2.4.5).
            parts.append(b"\xff\xfe" + (size + 2).to_bytes(2, "big") + bytes(size))
            left -= size + _COMMENT_HEAD
        return b"".join((*parts, picture[2:]))


@dataclass(frozen=True)
class Synthetic(ImagenetLike):
    """JPEGs that are all of about one size, 2 MB as in EMLIO's figures 7 and 8 (section 5), in one class."""

    sigma: ClassVar[float] = 0.0

    samples: int = 100
    classes: int = 1
    mean_kb: float = 2000.0
