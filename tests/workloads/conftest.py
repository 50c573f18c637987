"""Small images that a small model learns from."""

import numpy as np
import pytest
import torch
from PIL import Image

from loaders.base import Samples


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors are faster in one thread, and much faster when others use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def make_coloured(tmp_path_factory):
    """Makes a set of noisy images, each class of a colour of its own; every `large`-th has many more pixels."""

    def make(count, classes=3, large=None):
        root = tmp_path_factory.mktemp("coloured")
        rng = np.random.default_rng(0)
        paths = [f"class {k % classes}/{k:03d}.jpg" for k in range(count)]
        for k, path in enumerate(paths):
            pixels = rng.integers(0, 120, (640, 480, 3) if large and k % large == 0 else (48, 64, 3))
            pixels[..., k % classes] += 100
            (root / path).parent.mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(root / path)
        sizes = np.array([(root / path).stat().st_size for path in paths])
        return Samples(root, tuple(paths), np.arange(count) % classes, sizes)

    return make
