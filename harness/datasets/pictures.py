"""Generated pictures: noise with the spectrum of photographs, in JPEG files of a wanted size."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw

Field = npt.NDArray[np.float32]

MAX_LIGHT: Final = 48
MAX_COLOUR: Final = 80
"""Levels by which Y, and Cb and Cr, can be shifted: the textures keep this distance from 0 and 255."""
BITS_TOLERANCE: Final = 0.07
"""Share of the wanted size by which a file may differ from it."""

_EDGE: Final = 512
"""Edge of a texture in pixels."""
_EXPONENTS: Final = (0.6, 0.7, 0.8, 0.95)
"""Of the textures' luma, from fine to soft."""
_CONTRAST: Final = 23.0
_COLOUR_CONTRAST: Final = 9.0
"""Deviations in levels: pictures of ImageNet's size and bits per pixel then have JPEG qualities of 70 to 98."""
_UNEVENNESS: Final = 0.7
"""Deviation of ln(contrast) within a texture: photographs have plain and busy parts."""

_MIN_QUALITY, _MAX_QUALITY = 10, 98
_USUAL_BITS: Final = 4.3
"""Bits per pixel of the textures at a quality of 90."""
_SLOPE: Final = -0.5
"""Change of ln(bytes) with ln(scale of the quantiser tables), between qualities 70 and 95."""


def smooth_noise(rng: np.random.Generator, edge: int, exponent: float) -> Field:
    """Return a periodic square field with amplitude 1 / frequency ** exponent, zero mean and unit deviation.

    Natural images have an exponent of about 1 (Field, JOSA A 4(12), 1987).
    """
    spectrum = np.fft.rfft2(rng.standard_normal((edge, edge), dtype=np.float32))
    frequency = np.hypot(np.fft.fftfreq(edge)[:, None], np.fft.rfftfreq(edge)[None, :])
    frequency[0, 0] = np.inf
    field: Field = np.fft.irfft2(spectrum / frequency**exponent, s=(edge, edge)).astype(np.float32)
    field /= field.std()
    return field


@lru_cache(maxsize=2)
def _textures(seed: int) -> tuple[Image.Image, ...]:
    """Return square YCbCr textures that can be tiled without a seam."""
    rng = np.random.default_rng([seed, 0x5E])
    soft, blue, red = (smooth_noise(rng, _EDGE, exponent) for exponent in (1.4, 1.1, 1.1))
    limits = np.array([MAX_LIGHT, MAX_COLOUR, MAX_COLOUR])
    found = []
    for exponent in _EXPONENTS:
        light = _CONTRAST * np.exp(_UNEVENNESS * soft) * smooth_noise(rng, _EDGE, exponent)
        planes = np.stack((light, _COLOUR_CONTRAST * blue, _COLOUR_CONTRAST * red), axis=2) + 128.0
        levels = np.clip(planes, limits, 255 - limits).astype(np.uint8)
        found.append(Image.frombytes("YCbCr", (_EDGE, _EDGE), levels.tobytes()))
    return tuple(found)


def patch(seed: int, at: tuple[int, int, int], width: int, height: int) -> Image.Image:
    """Cut a picture, in YCbCr, from the textures of a dataset; `at` is texture, x and y, any numbers from 0 on."""
    texture = _textures(seed)[at[0] % len(_EXPONENTS)]
    part = Image.new("YCbCr", (width, height), None)
    for left in range(-(at[1] % _EDGE), width, _EDGE):
        for top in range(-(at[2] % _EDGE), height, _EDGE):
            part.paste(texture, (left, top))
    return part


def tinted(part: Image.Image, light: int, hue: float, colour: int) -> Image.Image:
    """Return a patch with Y shifted by `light` levels, and Cb and Cr by `colour` levels in the direction of a hue.

    The hue is an angle in turns; MAX_LIGHT and MAX_COLOUR bound the shifts.
    """
    blue, red = round(colour * math.cos(math.tau * hue)), round(colour * math.sin(math.tau * hue))
    # Addition that wraps around is thirty times as fast as Pillow's that does not, and textures leave room for it.
    return ImageChops.add_modulo(part, Image.new("YCbCr", part.size, (light % 256, blue % 256, red % 256)))


def lay(picture: Image.Image, outline: npt.NDArray[np.float64], part: Image.Image, corner: tuple[int, int]) -> None:
    """Lay a patch over a picture at `corner`, inside an outline of shape (corners, 2), x before y, in pixels."""
    mask = Image.new("1", part.size)
    ImageDraw.Draw(mask).polygon((outline - corner).ravel().tolist(), fill=1)
    picture.paste(part, corner, mask)


def shape_of(area: float, ratio: float, min_edge: int) -> tuple[int, int]:
    """Return width and height of a picture of about `area` pixels and a ratio of width to height."""
    return max(min_edge, round(math.sqrt(area * ratio))), max(min_edge, round(math.sqrt(area / ratio)))


def encode_to_size(image: Image.Image, wanted_bytes: int) -> bytes:
    """Encode a picture, RGB or YCbCr, at a quality whose size is within 7 % of the wanted one, or nearest to it.

    Baseline JPEG with 4:2:0 chroma, as most cameras write. Sizes step by about 3 % from one quality to the next.
    """
    tried: dict[int, bytes] = {}
    # libjpeg scales its quantiser tables by 200 - 2 * quality per cent, below 50 by 5000 / quality (jcparam.c).
    scale = 20 * (wanted_bytes / (_USUAL_BITS / 8 * image.width * image.height)) ** (1 / _SLOPE)
    for _ in range(4):
        quality = max(_MIN_QUALITY, min(_MAX_QUALITY, round(100 - scale / 2 if scale < 100 else 5000 / scale)))
        if quality in tried:
            break
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        tried[quality] = buffer.getvalue()
        missing = wanted_bytes / len(tried[quality])
        if abs(1 / missing - 1) <= BITS_TOLERANCE:
            break
        scale = (200 - 2 * quality if quality >= 50 else 5000 / quality) * missing ** (1 / _SLOPE)
    return min(tried.values(), key=lambda data: abs(math.log(len(data) / wanted_bytes)))
