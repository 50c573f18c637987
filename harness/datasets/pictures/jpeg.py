"""JPEG files of a wanted size."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from PIL import Image

__all__ = ["encode_to_size"]

_LEAST: Final = 25
_MOST: Final = 98
_FIRST: Final = 90
_TRIES: Final = 6
_CLOSE: Final = 0.07
"""Share of the wanted size by which a file may miss it."""
_PROBES: Final = 2
_NEAR: Final = 8
"""Qualities between which the size of one tells that of the other."""
_BAND: Final = 16
"""Rows of pixels that are encoded together where chroma is halved."""
_STRIDE: Final = 6
"""One band in so many is probed."""
_LEAST_BANDS: Final = 3
"""Probed bands below which the whole picture is encoded as fast."""
_USUAL_SLOPE: Final = -0.46
_USUAL_BITS: Final = 5.3
"""ln(bytes) over ln(quantiser step) and, at _FIRST, bits of a pixel, between qualities 70 and 95, for pictures of this
package."""


def encode_to_size(image: Image.Image, wanted_bytes: int) -> bytes:
    """Encode a picture, RGB or YCbCr, at a quality whose size is within 7 % of the wanted one, or nearest to it.

    Baseline JPEG with 4:2:0 chroma, as most cameras write. Sizes step by about 3 % from one quality to the next.
    """
    tried: dict[int, bytes] = {}
    wanted = math.log(wanted_bytes)
    quality = _probed_quality(image, wanted_bytes)
    for _ in range(_TRIES):
        tried[quality] = _encode(image, quality)
        if abs(len(tried[quality]) / wanted_bytes - 1) <= _CLOSE:
            break
        quality = _next_quality({quality: len(data) for quality, data in tried.items()}, wanted)
        if quality in tried:
            break
    return min(tried.values(), key=lambda data: abs(math.log(len(data)) - wanted))


def _probed_quality(image: Image.Image, wanted_bytes: int) -> int:
    """Guess the quality from a few bands of the picture, at a third of what encoding it costs."""
    tops = range(_BAND * (_STRIDE // 2), image.height - _BAND + 1, _BAND * _STRIDE)
    if len(tops) < _LEAST_BANDS:
        return _FIRST
    bands = Image.new(image.mode, (image.width, _BAND * len(tops)))
    for number, top in enumerate(tops):
        bands.paste(image.crop((0, top, image.width, top + _BAND)), (0, number * _BAND))
    header = _header_bytes(image.mode)
    wanted = math.log(max(1.0, (wanted_bytes - header) * bands.height / image.height))
    usual = math.ceil(_USUAL_BITS / 8 * bands.width * bands.height)
    quality = _next_quality({_FIRST: usual}, wanted)
    sizes: dict[int, int] = {}
    for _ in range(_PROBES):
        sizes[quality] = max(1, len(_encode(bands, quality)) - header)
        tried, quality = quality, _next_quality(sizes, wanted)
        if abs(quality - tried) <= _NEAR or quality in sizes:
            break
    return quality


@lru_cache(maxsize=4)
def _header_bytes(mode: str) -> int:
    return len(_encode(Image.new(mode, (_BAND, _BAND)), _FIRST))


def _encode(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _next_quality(sizes: Mapping[int, int], wanted: float) -> int:
    """Return where the line through the two nearest qualities meets the wanted ln(bytes)."""
    points = sorted((abs(math.log(size) - wanted), q) for q, size in sizes.items())
    slope = _USUAL_SLOPE
    if len(points) > 1:
        (_, one), (_, two) = points[:2]
        rise = math.log(sizes[one]) - math.log(sizes[two])
        slope = min(-0.1, rise / (_step(one) - _step(two)))
    near = points[0][1]
    missing = wanted - math.log(sizes[near])
    step = _step(near) + missing / slope
    quality = round(100 - math.exp(step) / 2)
    return max(_LEAST, min(_MOST, quality))


def _step(quality: int) -> float:
    """Return ln of the factor on the quantiser table, which libjpeg's jcparam.c takes as 200 - 2 * quality.

    Below quality 50 libjpeg's own law is steeper; the search corrects for it.
    """
    return math.log(200 - 2 * quality)
