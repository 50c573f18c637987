"""Pictures that are cut from painted sheets and laid over one another: a scene's look at a tenth of its cost.

Painting takes ten times as long as encoding what is painted. So a few sheets are painted once, and a picture is a part
of one of them under shapes that are filled with parts of others. They are kept in YCbCr, which is what JPEG stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw

from harness.datasets.pictures.scene import paint
from harness.datasets.pictures.style import Style
from harness.datasets.pictures.texture import Textures

__all__ = ["MOST_COLOUR", "MOST_LIGHT", "Sheets", "lay", "sheets", "tinted"]

MOST_LIGHT: Final = 48
MOST_COLOUR: Final = 80
"""Levels by which Y, and Cb and Cr, can be shifted: sheets keep so far from either end."""

_SHEETS: Final = 4
_SMALLEST: Final = 128
_LARGEST: Final = 512
"""Edges of a sheet in pixels: a larger one takes longer to paint than it is worth in variety."""
_DETAIL: Final = 1.2
"""Contrast of fine texture; what is more than a photograph's the codec's quality takes back."""

_ROOM: Final = [
    min(max(level, most), 255 - most) for most in (MOST_LIGHT, MOST_COLOUR, MOST_COLOUR) for level in range(256)
]
"""What the levels of Y, Cb and Cr become, so that there is room to shift them."""

_Outline = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sheets:
    """Painted surfaces, each with its mirror images around it, so that it goes on for ever without a seam."""

    planes: tuple[Image.Image, ...]
    """YCbCr, square, of twice the painted edge."""

    @classmethod
    def make(cls, seed: int, edge: int) -> Sheets:
        """Paint the sheets of a dataset; the same for the same seed and edge in pixels."""
        textures = Textures.make(seed)
        planes = []
        for number in range(_SHEETS):
            rng = np.random.default_rng([seed, 0x5E, number])
            style = Style.of_class(seed, 1_000_000 + number)
            painted = paint(rng, style, textures, width=edge, height=edge, detail=_DETAIL).convert("YCbCr")
            painted = painted.point(_ROOM)
            plane = Image.new("YCbCr", (2 * edge, 2 * edge))
            beside = painted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            for x, part in ((0, painted), (edge, beside)):
                plane.paste(part, (x, 0))
                plane.paste(part.transpose(Image.Transpose.FLIP_TOP_BOTTOM), (x, edge))
            planes.append(plane)
        return cls(tuple(planes))

    def patch(self, number: int, at: tuple[int, int], width: int, height: int) -> Image.Image:
        """Cut a part of one sheet, in YCbCr; `number` and `at`, x before y, may be any from 0 on."""
        plane = self.planes[number % _SHEETS]
        edge = plane.width
        x, y = (_start(one, length, edge // 2) for one, length in zip(at, (width, height), strict=True))
        if x + width <= edge and y + height <= edge:
            return plane.crop((x, y, x + width, y + height))
        part = Image.new("YCbCr", (width, height), None)
        for left in range(-x, width, edge):
            for top in range(-y, height, edge):
                part.paste(plane, (left, top))
        return part


def _start(number: int, length: int, edge: int) -> int:
    """Return where a part begins on a plane of two edges: inside the painting or its mirror image, if there is room."""
    within, mirrored = divmod(number, 2)
    return mirrored * edge + within % max(1, edge - length + 1)


@lru_cache(maxsize=2)
def sheets(seed: int, picture_area: float) -> Sheets:
    """Return the sheets for pictures of about this many pixels."""
    # Half as long again as the picture, in whole eighths of 128 pixels, so that few sizes are ever made.
    edge = int(1.5 * picture_area**0.5) // 16 * 16
    return Sheets.make(seed, min(_LARGEST, max(_SMALLEST, edge)))


def tinted(patch: Image.Image, light: int, blue: int, red: int) -> Image.Image:
    """Return a part of a sheet whose Y, Cb and Cr are shifted by so many levels, MOST_LIGHT and MOST_COLOUR at most."""
    # Addition that wraps around is thirty times as fast as Pillow's that does not, and sheets leave room for it.
    shift = Image.new("YCbCr", patch.size, (light % 256, blue % 256, red % 256))
    return ImageChops.add_modulo(patch, shift)


def lay(picture: Image.Image, outline: _Outline, patch: Image.Image, corner: tuple[int, int]) -> None:
    """Lay a patch over a picture at `corner`, inside an outline of shape (corners, 2), x before y, in pixels."""
    mask = Image.new("1", patch.size)
    ImageDraw.Draw(mask).polygon((outline - corner).ravel().tolist(), fill=1)
    picture.paste(patch, corner, mask)
