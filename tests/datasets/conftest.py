"""Small trees to open and break."""

import os
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

NOBODY = 65534


def encoded(kind="JPEG", *, mode="RGB", edge=64, seed=0, **options):
    bands = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 255, (edge, edge, bands), dtype=np.uint8)
    buffer = BytesIO()
    Image.frombytes(mode, (edge, edge), pixels.tobytes()).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def image():
    """Makes encoded images: image(), image("PNG"), image(mode="CMYK")."""
    return encoded


@pytest.fixture
def tree(tmp_path):
    """A whole tree of two classes with two images each."""
    root = tmp_path / "train"
    for label, name in enumerate(("n01440764", "n01443537")):
        (root / name).mkdir(parents=True)
        for k in range(2):
            (root / name / f"{name}_{k}.JPEG").write_bytes(encoded(seed=2 * label + k))
    return root


@pytest.fixture
def heard():
    """A progress callback that keeps what it was told."""

    class Heard(list):
        def __call__(self, what, done, total):
            self.append((what, done, total))

    return Heard()


@pytest.fixture
def unprivileged():
    """A block whose file accesses are those of a user without rights."""

    @contextmanager
    def block():
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return block
