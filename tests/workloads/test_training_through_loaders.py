"""A model learns through every loader that reads files, and through the stream; and the same through two of them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness.report.intervals import compare_pairs
from harness.workloads.classification import Classification
from harness.workloads.training import TrainingStep
from loaders import PyTorchLoader, SampleAwareLoader, Samples

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
        side = self.image_size // 8
        return torch.nn.Sequential(
            torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * side**2, 16), torch.nn.ReLU(),
            torch.nn.Linear(16, CLASSES),
        )  # fmt: skip


@pytest.fixture(scope="module")
def coloured(make_coloured) -> Samples:
    return make_coloured(24, CLASSES)


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
    assert losses[-1] < 0.7 * losses[0]


def _last_losses(kind: type[PyTorchLoader | SampleAwareLoader], samples: Samples) -> dict[int, float]:
    """Return the mean loss of the last epoch by seed: each has weights, orders and crops of its own."""
    workload, found = Colours(batch_size=6, image_size=32, num_classes=CLASSES), {}
    options = {"samples": samples, "transform": workload.transform, "batch_size": 6, "seed": 0}
    with kind(**options, num_workers=2) as loader:  # one for all seeds: starting workers takes longest
        for seed in range(5):
            step = TrainingStep(workload, "cpu", seed=seed)
            for epoch in range(3):
                for batch in loader.epoch(seed * 3 + epoch):
                    step(batch)
            losses = torch.stack(step.losses).view(3, -1).mean(dim=1)
            assert losses[-1] < losses[0]
            found[seed] = float(losses[-1])
    return found


@pytest.mark.slow
def test_the_loss_after_training_is_the_same_within_the_noise_of_five_seeds(make_coloured) -> None:
    coloured = make_coloured(60, CLASSES, large=5)
    plain, ours = (_last_losses(kind, coloured) for kind in (PyTorchLoader, SampleAwareLoader))
    found = compare_pairs(plain, ours)
    assert found is not None
    # The order of arrival is chance, and a 95 % interval leaves 0 out in one of twenty runs: twice as wide is allowed.
    assert abs(found.difference) <= max(2 * found.half_width, 0.02 * found.first_mean), found
    # The seeds must not drown what is asked: a tenth of the loss would be seen.
    assert found.half_width < 0.1 * found.first_mean, found
