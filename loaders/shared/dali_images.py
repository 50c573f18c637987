"""The image transform of `loaders.pipeline.image` as a graph of DALI operators, for every loader that runs DALI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import nvidia.dali.math as dali_math
import torch
from nvidia.dali import fn, types

from loaders.pipeline.image import ATTEMPTS, ImageTransform

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode
else:
    DataNode = Any


DALI_IMAGE_NOTE: Final = (
    "DALI decodes only the crop of an image and resizes in floating point: pixels differ from PIL's by "
    "0.2 of 255 grey levels on average"
)


def device_index(device: torch.device) -> int | None:
    """Return the number by which DALI knows a device, None for the CPU."""
    if device.type == "cpu":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def share_threads(num_threads: int, device: torch.device) -> list[int]:
    """Return the threads of each of the pipelines that take turns with the batches.

    DALI runs the CPU operators of a pipeline one after another, and each waits for its slowest thread: two threads are
    busy for two thirds of the time. Two pipelines with one thread each fill it. On a GPU one pipeline has all threads.
    """
    if device.type != "cpu" or num_threads % 2:
        return [num_threads]
    return [num_threads // 2] * 2


def dali_transform(encoded: DataNode, transform: ImageTransform, device: str, *, draws: DataNode) -> DataNode:
    """Decode, crop, resize, flip and normalise a batch of encoded images inside a DALI pipeline.

    `encoded` holds one uint8 vector per sample, in host memory; `draws` one row of `ImageTransform.draws` per
    sample, float64, from an external source. `device` is "cpu" or "cuda"; the result is on it, float32, CHW.
    Only the crop is decoded, so damage to a file below its crop goes unseen.
    """
    shape = fn.peek_image_shape(encoded, adjust_orientation=False)
    box = _crop(draws, shape[0], shape[1], transform)
    image = fn.decoders.image_slice(
        encoded,
        start=box[0:2],
        shape=box[2:4],
        axes=(0, 1),
        device="cpu" if device == "cpu" else "mixed",
        output_type=types.RGB,
        # PIL neither turns an image by its EXIF tag nor upsamples chroma by repetition.
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,
    )
    small = fn.resize(image, size=(transform.size, transform.size), interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        small,
        mirror=fn.cast(draws[4 * ATTEMPTS], dtype=types.INT32),
        mean=[255 * mean for mean in transform.mean],
        std=[255 * std for std in transform.std],
        dtype=types.FLOAT,
        output_layout="CHW",
    )


def _crop(draws: DataNode, height: DataNode, width: DataNode, transform: ImageTransform) -> DataNode:
    """Return [y, x, height, width] per sample, int32, by the arithmetic of `ImageTransform.crop`."""
    across, down, left, top = (draws[part * ATTEMPTS : (part + 1) * ATTEMPTS] for part in range(4))
    side = dali_math.sqrt(_float64(width * height))
    wide, high = dali_math.floor(across * side + 0.5), dali_math.floor(down * side + 0.5)
    attempts = _int32(
        fn.stack(dali_math.floor(top * (height - high + 1)), dali_math.floor(left * (width - wide + 1)), high, wide)
    )
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    # There is no "first that holds" among the operators: rank the attempts that fit, first highest, and take
    # the highest rank. The central crop has rank 0, which stands only where none fits.
    rank = _int32(fits) * types.Constant(list(range(ATTEMPTS, 0, -1)), dtype=types.INT32)
    best = fn.reductions.max(rank)
    chosen = fn.reductions.sum(attempts * _int32((rank == best) & (best > 0)), axes=[1], dtype=types.INT32)
    whole_wide = dali_math.min(width, _round(_float64(height) * transform.ratio[1]))
    whole_high = dali_math.min(height, _round(_float64(width) / transform.ratio[0]))
    central = fn.stack((height - whole_high) // 2, (width - whole_wide) // 2, whole_high, whole_wide)
    return chosen + _int32(central) * _int32(best == 0)


def _round(node: DataNode) -> DataNode:
    return fn.cast(dali_math.floor(node + 0.5), dtype=types.INT64)


def _float64(node: DataNode) -> DataNode:
    return fn.cast(node, dtype=types.FLOAT64)


def _int32(node: DataNode) -> DataNode:
    return fn.cast(node, dtype=types.INT32)
