"""What the loaders' benchmark compares: our loaders, plain scripts of their engines, and bounds.

A bare script does the arithmetic of ours: it calls the same transform, or has the same operators, in a plain Dataset,
SPDL pipeline or DALI graph that lives for all epochs. What ours costs beyond it is the adapter's. A documented script
is one as the engine's own documentation has it, with the transforms of that: a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from loaders.base import Samples

ENGINES = ("pytorch", "dali", "spdl", "spdl_io")
BOUNDS = ("reading", "fixed")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224

Epoch = Callable[[int], Iterable[int]]
"""Runs one epoch; yields the number of images of every batch as it comes."""


@contextmanager
def plain_pytorch(kind: str, samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load as PyTorch's ImageNet example does: a Dataset of PIL images, a DataLoader over it."""
    import torch
    from PIL import Image

    from loaders import ImageTransform

    ours, torchvision = ImageTransform(), _torchvision()

    class Documented(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(samples)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            with samples.path(index).open("rb") as file, Image.open(file) as image:
                return torchvision(image.convert("RGB")), int(samples.labels[index])

    class Bare(Documented):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            encoded = samples.path(index).read_bytes()
            return ours.apply(encoded, seed=0, epoch=0, sample_id=index), int(samples.labels[index])

    dataset = Bare() if kind == "bare" else Documented()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )
    yield lambda _: (len(images) for images, _labels in loader)
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


@contextmanager
def plain_dali(kind: str, samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load as DALI's ResNet-50 example does: one pipeline for all epochs, its file reader shuffling."""
    import torch
    from nvidia.dali import fn, pipeline_def, types

    from loaders import ImageTransform
    from loaders.shared.dali_images import dali_transform

    transform = ImageTransform()

    @pipeline_def  # type: ignore[untyped-decorator]
    def graph() -> Any:
        encoded, labels = fn.readers.file(
            file_root=str(samples.root),
            files=list(samples.paths),
            labels=samples.labels.tolist(),
            random_shuffle=True,
            pad_last_batch=True,
            name="reader",
        )
        if kind == "bare":
            ids = np.arange(batch_size)
            draws = fn.external_source(source=(transform.draws(seed=0, epoch=k, ids=ids) for k in count()), ndim=1)
            return dali_transform(encoded, transform, "cpu", draws=draws), labels
        images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[0.75, 4 / 3])
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(probability=0.5),
            mean=[255 * mean for mean in MEAN],
            std=[255 * std for std in STD],
            dtype=types.FLOAT,
            output_layout="CHW",
        )
        return images, labels

    pipeline = graph(batch_size=batch_size, num_threads=workers, device_id=None, prefetch_queue_depth=2)
    pipeline.build()

    def epoch(_: int) -> Iterator[int]:
        for _batch in range(-(-len(samples) // batch_size)):
            images, _labels = pipeline.run()
            yield len(torch.utils.dlpack.from_dlpack(images.as_tensor()))

    yield epoch


@contextmanager
def bare_spdl(decode: str, samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load as SPDL's documentation migrates a Dataset, its steps those of our transform."""
    import torch

    from loaders import ImageTransform, Item

    torch.set_num_threads(1)
    transform: Any = ImageTransform()
    if decode == "spdl":
        from loaders.spdl.image import SpdlImages

        transform = SpdlImages(transform)

    def load(sample_id: int) -> Item:
        data, target = transform.decode(transform.read(samples, sample_id), samples, sample_id)
        item = Item(sample_id, 0, 0, data, target)
        for step in transform.transforms:
            item = step(item)
        return item

    yield lambda number: _spdl_epoch(samples, workers, batch_size, load, transform.collate, number)


@contextmanager
def documented_spdl(samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load as SPDL's documentation migrates a Dataset: its function in a pipeline's threads, aggregated, collated."""
    import torch
    from PIL import Image

    transform = _torchvision()
    torch.set_num_threads(1)

    def load(sample_id: int) -> tuple[torch.Tensor, int]:
        with Image.open(samples.path(sample_id)) as image:
            return transform(image.convert("RGB")), int(samples.labels[sample_id])

    collate = torch.utils.data.default_collate
    yield lambda number: _spdl_epoch(samples, workers, batch_size, load, collate, number)


@contextmanager
def documented_spdl_io(samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load as SPDL's ImageNet example does: spdl.io decodes, FFmpeg's filters crop and resize, one buffer a batch."""
    import spdl.io
    import torch

    rng = np.random.default_rng(0)
    mean, std = (torch.tensor([255 * each for each in values]).view(1, 3, 1, 1) for values in (MEAN, STD))
    torch.set_num_threads(1)

    def load(sample_id: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(str(samples.path(sample_id)))
        share = float(np.sqrt(rng.uniform(0.08, 1.0)))
        width, height = (max(8, round(share * edge)) for edge in (packets.width, packets.height))
        x, y = (int(rng.integers(0, room + 1)) for room in (packets.width - width, packets.height - height))
        flip = ["hflip"] if rng.random() < 0.5 else []
        steps = [f"crop={width}:{height}:{x}:{y}:exact=1", f"scale={SIZE}:{SIZE}:flags=bilinear", *flip]
        frames = spdl.io.decode_packets(packets, filter_desc=",".join([*steps, "format=pix_fmts=rgb24"]))
        return frames, int(samples.labels[sample_id])

    def collate(loaded: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in loaded]))
        images = pixels.permute(0, 3, 1, 2).to(torch.float32).sub_(mean).div_(std)
        return images.contiguous(), torch.tensor([label for _, label in loaded])

    yield lambda number: _spdl_epoch(samples, workers, batch_size, load, collate, number)


def _spdl_epoch(
    samples: Samples, workers: int, batch_size: int, load: Any, collate: Callable[[Any], Any], number: int
) -> Iterator[int]:
    from spdl.pipeline import PipelineBuilder

    builder: Any = PipelineBuilder()
    shuffled = np.random.default_rng(number).permutation(len(samples)).tolist()
    pipeline = (
        builder.add_source(shuffled)
        .pipe(load, concurrency=workers)
        .aggregate(batch_size)
        .pipe(collate)
        .add_sink(3)
        .build(num_threads=workers, max_failures=0)
    )
    with pipeline.auto_stop():
        for collated in pipeline:
            yield len(collated[0])


def _torchvision() -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


@contextmanager
def _ours(engine: str, samples: Samples, workers: int, batch_size: int) -> Iterator[Epoch]:
    """Load through this project's loader of the name."""
    import torch

    from loaders import DaliLoader, ImageTransform, PyTorchLoader, SpdlLoader
    from loaders.shared.fixed import FixedBatchLoader

    torch.set_num_threads(1)
    common: dict[str, Any] = {"samples": samples, "transform": ImageTransform(), "batch_size": batch_size, "seed": 0}
    loader: Any
    match engine:
        case "pytorch":
            loader = PyTorchLoader(num_workers=workers, **common)
        case "dali":
            loader = DaliLoader(num_threads=workers, **common)
        case "spdl":
            loader = SpdlLoader(num_threads=workers, **common)
        case "spdl_io":
            loader = SpdlLoader(num_threads=workers, decode="spdl", **common)
        case "fixed":
            loader = FixedBatchLoader(**common)
        case other:
            raise ValueError(other)
    with loader:
        yield lambda number: (len(batch) for batch in loader.epoch(number))


@contextmanager
def _reading(samples: Samples, _workers: int, batch_size: int) -> Iterator[Epoch]:
    """Read the files and decode nothing: what no loader of files can be faster than."""

    def epoch(number: int) -> Iterator[int]:
        order = np.random.default_rng(number).permutation(len(samples)).tolist()
        for start in range(0, len(order), batch_size):
            yield sum(len(samples.path(sample_id).read_bytes()) > 0 for sample_id in order[start : start + batch_size])

    yield epoch


ARMS: dict[str, Callable[[Samples, int, int], AbstractContextManager[Epoch]]] = {
    **{f"ours {engine}": partial(_ours, engine) for engine in ENGINES},
    "bare pytorch": partial(plain_pytorch, "bare"),
    "bare dali": partial(plain_dali, "bare"),
    "bare spdl": partial(bare_spdl, "pil"),
    "bare spdl_io": partial(bare_spdl, "spdl"),
    "documented pytorch": partial(plain_pytorch, "documented"),
    "documented dali": partial(plain_dali, "documented"),
    "documented spdl": documented_spdl,
    "documented spdl_io": documented_spdl_io,
    "reading": _reading,
    "fixed": partial(_ours, "fixed"),
}
"""What opens an arm for so many workers and a batch size, by its name."""
