from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

from loaders.pipeline.image import ImageTransform
from loaders.shared.dali_images import dali_transform

COUNT = 16


def through_dali(encoded: list[bytes], transform: ImageTransform, *, device: str, epoch: int) -> torch.Tensor:
    @pipeline_def  # type: ignore[untyped-decorator]
    def graph() -> object:
        data = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        return dali_transform(data, transform, device, draws=fn.external_source(name="draws", ndim=1))

    pipeline = graph(
        batch_size=len(encoded), num_threads=2, device_id=0 if device == "cuda" else None, prefetch_queue_depth=1
    )
    pipeline.build()
    pipeline.feed_input("encoded", [np.frombuffer(one, np.uint8) for one in encoded])
    pipeline.feed_input("draws", transform.draws(seed=3, epoch=epoch, ids=np.arange(len(encoded))))
    return torch.utils.dlpack.from_dlpack(pipeline.run()[0].as_tensor()).cpu()


def through_pil(encoded: list[bytes], transform: ImageTransform, *, epoch: int) -> torch.Tensor:
    return torch.stack(
        [transform.apply(one, seed=3, epoch=epoch, sample_id=index) for index, one in enumerate(encoded)]
    )


def grey_levels(ours: torch.Tensor, theirs: torch.Tensor, transform: ImageTransform) -> torch.Tensor:
    """Return the mean absolute difference of each image, in levels of 255."""
    std = torch.tensor(transform.std).view(1, 3, 1, 1)
    return ((ours - theirs) * std * 255).abs().mean(dim=(1, 2, 3))


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@pytest.mark.parametrize(
    ("width", "height", "options"),
    [
        (500, 375, {"quality": 92}),
        (500, 375, {"quality": 92, "progressive": True}),
        (300, 200, {"mode": "L"}),
        (300, 200, {"mode": "CMYK", "quality": 95}),
        (300, 200, {"exif": turned()}),
        (300, 200, {"format": "PNG"}),
        (300, 200, {"format": "PNG", "mode": "RGBA"}),
        (300, 200, {"format": "PNG", "mode": "P"}),
        (1200, 40, {}),
        (30, 900, {}),
        (1, 1, {}),
        (1600, 1200, {"quality": 90}),
    ],
)
def test_dali_and_pil_give_the_same_pixels_within_half_a_grey_level(
    encode_image: Callable[..., bytes], width: int, height: int, options: dict[str, object]
) -> None:
    transform = ImageTransform()
    encoded = [encode_image(width, height, **options)] * COUNT
    ours = through_dali(encoded, transform, device="cpu", epoch=7)
    theirs = through_pil(encoded, transform, epoch=7)
    assert ours.shape == theirs.shape
    assert grey_levels(ours, theirs, transform).max() < 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_gpu_decoder_gives_the_same_pixels_within_two_grey_levels(encode_image: Callable[..., bytes]) -> None:
    transform = ImageTransform()
    encoded = [encode_image(500, 375, seed=index, quality=92) for index in range(COUNT)]
    ours = through_dali(encoded, transform, device="cuda", epoch=0)
    assert grey_levels(ours, through_pil(encoded, transform, epoch=0), transform).max() < 2
