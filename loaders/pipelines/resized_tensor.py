"""Pictures that are tensors already, and masks that are bits already, brought to another size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["resized_masks", "resized_tensor"]


def resized_tensor(picture: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return a float32 tensor (3, H, W) at width and height `size`, by the filter of PIL's bilinear resize.

    PIL rounds to whole grey levels after each of its two passes, this rounds nowhere.
    """
    width, height = size
    whole = torch.nn.functional.interpolate(
        picture[None], (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return whole[0]


def resized_masks(
    masks: npt.NDArray[np.uint8], before: tuple[int, int], after: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Return masks (k, H, ceil(W / 8)), a bit a pixel, for a picture that had width and height `before`.

    Every pixel becomes that of the nearest one: an outline drawn at the new size would differ by up to one old pixel.
    """
    width, height = after
    found = np.zeros((len(masks), height, -(-width // 8)), np.uint8)
    # The old pixel in which the middle of each new one lies.
    columns, rows = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(before, after, strict=True)
    )
    for old, new in zip(masks, found, strict=True):
        # Most things are small: what has no pixel of a thing is passed over.
        there = np.flatnonzero(old.any(axis=1)[rows])
        bits = np.unpackbits(old[rows[there]], axis=1)[:, columns]
        new[there] = np.packbits(bits, axis=1)
    return found
