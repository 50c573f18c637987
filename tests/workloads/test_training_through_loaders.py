"""A model learns through every loader that reads files, and through the stream."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.workloads.classification import Classification
from harness.workloads.training import TrainingStep
from loaders import Samples

pytestmark = pytest.mark.process

LOADERS = {
    "pytorch": ("loaders.PyTorchLoader", {"num_workers": 2}),
    "dali": ("loaders.DaliLoader", {}),
    "spdl": ("loaders.SpdlLoader", {"num_threads": 2}),
    "spdl_decode": ("loaders.SpdlLoader", {"num_threads": 2, "decode": "spdl"}),
    "streaming": ("loaders.streaming.StreamingLoader", {"slice_records": 2, "warm_bytes": 0}),
}
CLASSES = 3
EPOCHS = 4


@dataclass(frozen=True)
class Colours(Classification):
    """A small network that tells by its mean colour what an image is."""

    name: str = "colours"

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * (self.image_size // 8) ** 2, CLASSES)
        )


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Noisy images, each class of a colour of its own."""
    root = tmp_path_factory.mktemp("coloured")
    rng = np.random.default_rng(0)
    paths = []
    for k in range(24):
        pixels = rng.integers(0, 120, (48, 64, 3))
        pixels[..., k % CLASSES] += 100
        paths.append(f"class {k % CLASSES}/{k:03d}.jpg")
        (root / paths[-1]).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(root / paths[-1])
    sizes = np.array([(root / path).stat().st_size for path in paths])
    return Samples(root, tuple(paths), np.arange(24) % CLASSES, sizes)


@pytest.fixture
def source(request, coloured, tmp_path):
    """What the loader of the test takes its samples from."""
    if request.getfixturevalue("name") != "streaming":
        yield {"samples": coloured}
        return
    from loaders.records.shards.convert import convert

    shards = convert(coloured, Path(tmp_path) / "shards", key="coloured", seed=0)
    serve = [sys.executable, "-m", "loaders.streaming", "serve", "--until-eof", "--root", str(shards)]
    daemon = subprocess.Popen(
        [*serve, "--listen", "127.0.0.1:0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert daemon.stdin is not None and daemon.stdout is not None
    yield {"endpoint": json.loads(daemon.stdout.readline())["endpoint"]}
    daemon.stdin.close()
    daemon.stdout.close()
    daemon.wait(10)


@pytest.mark.parametrize("name", list(LOADERS))
def test_the_loss_of_a_model_falls(name, source):
    workload = Colours(batch_size=8, image_size=32, num_classes=CLASSES)
    target, options = LOADERS[name]
    module, kind = target.rsplit(".", 1)
    step = TrainingStep(workload, "cpu", seed=0)
    common = {"transform": workload.transform, "batch_size": workload.batch_size, "seed": 0}
    with getattr(importlib.import_module(module), kind)(**common, **source, **options) as loader:
        for epoch in range(EPOCHS):
            for batch in loader.epoch(epoch):
                step(batch)
    losses = torch.stack(step.losses).view(EPOCHS, -1).mean(dim=1)
    assert losses[-1] < losses[0] / 2
