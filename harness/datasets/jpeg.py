"""JPEG files of a wanted size."""

from __future__ import annotations

import io
import math
from typing import Final

from PIL import Image

__all__ = ["encode_to_size"]

_LEAST: Final = 25
_MOST: Final = 98
_FIRST: Final = 90
_TRIES: Final = 6
_USUAL_SLOPE: Final = -0.5
"""Of ln(bytes) over ln(quantiser step), between qualities 70 and 95, for pictures of this package."""


def encode_to_size(image: Image.Image, wanted_bytes: int) -> bytes:
    """Encode a picture at the quality whose size is nearest to the wanted one.

    Baseline JPEG with 4:2:0 chroma, as most cameras write. Sizes step by about 3 % from one quality to the next.
    """
    tried: dict[int, bytes] = {}
    wanted = math.log(wanted_bytes)
    quality = _FIRST
    for _ in range(_TRIES):
        tried[quality] = _encode(image, quality)
        quality = _next_quality(tried, wanted)
        if quality in tried:
            break
    return min(tried.values(), key=lambda data: abs(math.log(len(data)) - wanted))


def _encode(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _next_quality(tried: dict[int, bytes], wanted: float) -> int:
    """Return where the line through the two nearest qualities meets the wanted ln(bytes)."""
    points = sorted((abs(math.log(len(data)) - wanted), q) for q, data in tried.items())
    slope = _USUAL_SLOPE
    if len(points) > 1:
        (_, one), (_, two) = points[:2]
        rise = math.log(len(tried[one])) - math.log(len(tried[two]))
        slope = min(-0.1, rise / (_step(one) - _step(two)))
    near = points[0][1]
    missing = wanted - math.log(len(tried[near]))
    step = _step(near) + missing / slope
    quality = round(100 - math.exp(step) / 2)
    return max(_LEAST, min(_MOST, quality))


def _step(quality: int) -> float:
    """Return ln of the factor on the quantiser table, which libjpeg's jcparam.c takes as 200 - 2 * quality.

    Below quality 50 libjpeg's own law is steeper; the search corrects for it.
    """
    return math.log(200 - 2 * quality)
