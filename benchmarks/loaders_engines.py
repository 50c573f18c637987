"""One engine over one dataset, in a process of its own: a bare script of its documentation's kind, or our loader.

The order comes as JSON on stdin; what was measured goes to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from loaders.base import Samples

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224

Epoch = Callable[[int], int]
"""Runs one epoch and returns the number of its images."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured."""

    engine: str
    samples: str
    """A file of `Samples.save`."""
    workers: int
    batch_size: int = 32
    seconds: float = 6.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What whole epochs, after one that does not count, came to."""

    images_per_s: float
    cpu_s_per_image: float
    """Of the process and its workers."""


@contextmanager
def native_pytorch(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Load as PyTorch's ImageNet example does: a Dataset of PIL images, torchvision's transforms, a DataLoader."""
    import torch
    from PIL import Image
    from torchvision import transforms

    class Folder(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.files = [(samples.path(k), int(samples.labels[k])) for k in range(len(samples))]
            self.transform = _torchvision(transforms)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            path, label = self.files[index]
            with path.open("rb") as file, Image.open(file) as image:
                return self.transform(image.convert("RGB")), label

    loader = torch.utils.data.DataLoader(
        Folder(),
        batch_size=order.batch_size,
        shuffle=True,
        num_workers=order.workers,
        persistent_workers=True,
    )
    yield lambda _: sum(len(images) for images, _ in loader)
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


@contextmanager
def native_dali(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Load as DALI's ResNet-50 example does: one pipeline for all epochs, its file reader shuffling."""
    import torch
    from nvidia.dali import fn, pipeline_def, types

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

    pipeline = graph(batch_size=order.batch_size, num_threads=order.workers, device_id=None, prefetch_queue_depth=2)
    pipeline.build()

    def epoch(_: int) -> int:
        for _batch in range(-(-len(samples) // order.batch_size)):
            images, _labels = pipeline.run()
            torch.utils.dlpack.from_dlpack(images.as_tensor())
        return len(samples)

    yield epoch


@contextmanager
def native_spdl(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Load as SPDL's documentation migrates a Dataset: its function in a pipeline's threads, aggregated, collated."""
    import torch
    from PIL import Image
    from spdl.pipeline import PipelineBuilder
    from torchvision import transforms

    transform = _torchvision(transforms)
    torch.set_num_threads(1)

    def load(sample_id: int) -> tuple[torch.Tensor, int]:
        with Image.open(samples.path(sample_id)) as image:
            return transform(image.convert("RGB")), int(samples.labels[sample_id])

    yield lambda seed: _spdl_epoch(PipelineBuilder(), samples, order, load, torch.utils.data.default_collate, seed)


@contextmanager
def native_spdl_io(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Load as SPDL's ImageNet example does: spdl.io decodes, FFmpeg's filters crop and resize, one buffer a batch."""
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

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

    yield lambda seed: _spdl_epoch(PipelineBuilder(), samples, order, load, collate, seed)


def _spdl_epoch(builder: Any, samples: Samples, order: Order, load: Any, collate: Any, seed: int) -> int:
    shuffled = np.random.default_rng(seed).permutation(len(samples)).tolist()
    pipeline = (
        builder.add_source(shuffled)
        .pipe(load, concurrency=order.workers)
        .aggregate(order.batch_size)
        .pipe(collate)
        .add_sink(3)
        .build(num_threads=order.workers, max_failures=0)
    )
    with pipeline.auto_stop():
        return sum(len(images) for images, _ in pipeline)


@contextmanager
def ours(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Load through this project's loader of the name."""
    import torch

    from loaders import DaliLoader, ImageTransform, PyTorchLoader, SpdlLoader
    from loaders.fixed import FixedBatchLoader

    torch.set_num_threads(1)
    common: dict[str, Any] = {
        "samples": samples,
        "transform": ImageTransform(),
        "batch_size": order.batch_size,
        "seed": 0,
    }
    loader: Any
    match order.engine:
        case "pytorch":
            loader = PyTorchLoader(num_workers=order.workers, **common)
        case "dali":
            loader = DaliLoader(num_threads=order.workers, **common)
        case "spdl":
            loader = SpdlLoader(num_threads=order.workers, **common)
        case "spdl_io":
            loader = SpdlLoader(num_threads=order.workers, decode="spdl", **common)
        case "fixed":
            loader = FixedBatchLoader(**common)
        case other:
            raise ValueError(other)
    with loader:
        yield lambda epoch: sum(len(batch) for batch in loader.epoch(epoch))


@contextmanager
def reading(samples: Samples, order: Order) -> Iterator[Epoch]:
    """Read the files and decode nothing: what no loader of files can be faster than."""

    def epoch(seed: int) -> int:
        return sum(
            len(samples.path(int(k)).read_bytes()) > 0 for k in np.random.default_rng(seed).permutation(len(samples))
        )

    yield epoch


NATIVE = {
    "native pytorch": native_pytorch,
    "native dali": native_dali,
    "native spdl": native_spdl,
    "native spdl_io": native_spdl_io,
    "reading": reading,
}


def _torchvision(transforms: Any) -> Any:
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its workers, which live through all epochs."""
    process = psutil.Process()
    used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in used)


def measure(order: Order) -> Measured:
    """Run whole epochs for at least the time that was ordered."""
    samples = Samples.load(Path(order.samples))
    with NATIVE.get(order.engine, ours)(samples, order) as epoch:
        epoch(0)
        images, number = 0, 0
        began, cpu_s = time.perf_counter(), _cpu_s()
        while time.perf_counter() - began < order.seconds:
            number += 1
            images += epoch(number)
        return Measured(images / (time.perf_counter() - began), (_cpu_s() - cpu_s) / images)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measure(Order(**json.load(sys.stdin))))) + "\n")
