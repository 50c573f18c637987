"""Real JPEG files, as a tree and as shards, and what a process holds."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from loaders import Samples
from loaders.records.shards.convert import convert
from tests.loaders.small_data import write_samples


def encode_image(
    width: int, height: int, *, seed: int = 0, mode: str = "RGB", format: str = "JPEG", **options: object
) -> bytes:
    """Encode a smooth, noisy picture."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image = image.quantize(64) if mode == "P" else image.convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def make_tree(root: Path, count: int) -> Samples:
    """Write `count` JPEG files as class/name.jpg."""
    rng = np.random.default_rng(count)
    sides = [(int(rng.integers(90, 200)), int(rng.integers(80, 160))) for _ in range(count)]
    files = [(f"class {k % 3}/{k:04d}.jpg", encode_image(*side, seed=k)) for k, side in enumerate(sides)]
    return write_samples(root, files)


SAMPLES = 61
"""A prime, so that no batch size divides it."""


def _noise(seed: int) -> bytes:
    random = np.random.default_rng(seed)
    height, width = (int(side) for side in random.integers(24, 64, 2))
    buffer = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """A tree of small JPEGs in seven classes."""
    files = [(f"class_{k % 7}/{k:03d}.jpg", _noise(k)) for k in range(SAMPLES)]
    return write_samples(tmp_path_factory.mktemp("tree"), files, classes=7)


@pytest.fixture(scope="session")
def shards(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as several shards."""
    out = tmp_path_factory.mktemp("converted") / "shards"
    return convert(samples, out, key="tree", seed=3, shard_bytes=int(samples.sizes.sum()) // 4)


@pytest.fixture(name="encode_image", scope="session")
def encode_image_fixture() -> Callable[..., bytes]:
    return encode_image


@pytest.fixture
def image_tree(tmp_path: Path) -> Callable[[int], Samples]:
    def make(count: int) -> Samples:
        return make_tree(tmp_path / "tree", count)

    return make


@pytest.fixture
def orphaned_memory() -> Callable[[], list[str]]:
    """List torch's shared memory whose maker is dead; that of a living process is still under way."""

    def find() -> list[str]:
        # Workers of other tests that have just ended may still have theirs removed.
        deadline = time.monotonic() + 10
        while (left := orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def orphans() -> list[str]:
        names = [path.name for path in Path("/dev/shm").glob("torch_*")]
        return [name for name in names if not psutil.pid_exists(int(name.split("_")[1]))]

    return find


@pytest.fixture
def resources() -> Callable[[], dict[str, int]]:
    """Count the descriptors and threads of this process."""

    def count() -> dict[str, int]:
        return {
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        }

    return count
