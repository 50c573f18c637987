"""The same small model learns the same through torch's DataLoader and the sample-aware loader, over five seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from harness.report.intervals import compare_pairs
from harness.workloads.classification import Classification
from harness.workloads.training import TrainingStep
from loaders import PyTorchLoader, SampleAwareLoader, Samples

pytestmark = pytest.mark.process

CLASSES, COUNT, EPOCHS, SEEDS = 3, 60, 3, range(5)


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
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Noisy images, each class of a colour of its own; every fifth has twenty times as many pixels."""
    root = tmp_path_factory.mktemp("coloured")
    rng = np.random.default_rng(0)
    paths = [f"{k:03d}.jpg" for k in range(COUNT)]
    for k, path in enumerate(paths):
        pixels = rng.integers(0, 180, (640, 480, 3) if k % 5 == 0 else (140, 110, 3))
        pixels[..., k % CLASSES] += 40
        Image.fromarray(pixels.astype(np.uint8)).save(root / path)
    sizes = np.array([(root / path).stat().st_size for path in paths])
    return Samples(root, tuple(paths), np.arange(COUNT) % CLASSES, sizes)


def _last_losses(kind: type[PyTorchLoader | SampleAwareLoader], samples: Samples) -> dict[int, float]:
    """Return the mean loss of the last epoch by seed: each has weights, orders and crops of its own."""
    workload, found = Colours(batch_size=6, image_size=32, num_classes=CLASSES), {}
    options = {"samples": samples, "transform": workload.transform, "batch_size": 6, "seed": 0}
    with kind(**options, num_workers=2) as loader:  # one for all seeds: starting workers takes longest
        for seed in SEEDS:
            step = TrainingStep(workload, "cpu", seed=seed)
            for epoch in range(EPOCHS):
                for batch in loader.epoch(seed * EPOCHS + epoch):
                    step(batch)
            losses = torch.stack(step.losses).view(EPOCHS, -1).mean(dim=1)
            assert losses[-1] < losses[0]
            found[seed] = float(losses[-1])
    return found


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of so small a model would wait for one another and for the workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_loss_after_training_is_the_same_within_the_noise_of_five_seeds(coloured: Samples) -> None:
    plain, ours = (_last_losses(kind, coloured) for kind in (PyTorchLoader, SampleAwareLoader))
    found = compare_pairs(plain, ours)
    assert found is not None
    # The order of arrival is chance, and a 95 % interval leaves 0 out in one of twenty runs: twice as wide is allowed.
    assert abs(found.difference) <= max(2 * found.half_width, 0.02 * found.first_mean), found
    # The seeds must not drown what is asked: a tenth of the loss would be seen.
    assert found.half_width < 0.1 * found.first_mean, found
