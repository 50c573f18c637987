"""ImageNet's known oddities, each a small real file, come out of every engine as the same pixels."""

import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from harness.datasets.tree import ImageTree
from loaders.dali import DaliLoader
from loaders.pipeline.image import ImageTransform, decode
from loaders.pytorch import PyTorchLoader
from loaders.spdl import SpdlLoader

WIDTH, HEIGHT = 160, 120
TRANSFORM = ImageTransform(size=64, scale=(0.5, 1.0))
GREY_LEVELS = 0.75
"""Mean difference between PIL and DALI that counts as the same; resizing alone makes 0.2."""


def picture(mode="RGB"):
    coarse = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    if mode == "CMYK":
        inks = np.asarray(image.convert("CMYK")).copy()
        inks[..., 3] = np.linspace(0, 120, WIDTH).astype(np.uint8)
        return Image.fromarray(inks, "CMYK")
    return image.convert(mode)


def encoded(mode="RGB", kind="JPEG", **options):
    buffer = BytesIO()
    if kind == "JPEG":
        options = {"quality": 95, **options}
    picture(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def four_inks_as_luma():
    """A CMYK JPEG that says, as Adobe's programs write it, that its inks are stored as luma and chroma."""
    data = bytearray(encoded("CMYK"))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


ODDITIES = {
    "n02105855_2933.JPEG": lambda: encoded(kind="PNG"),  # the one PNG among ImageNet's .JPEG
    "cmyk.JPEG": lambda: encoded("CMYK"),
    "ycck.JPEG": four_inks_as_luma,
    "grey.JPEG": lambda: encoded("L"),
    "turned.JPEG": lambda: encoded(exif=turned()),
    "damaged_exif.JPEG": lambda: encoded(exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xffdamaged"),
    "progressive.JPEG": lambda: encoded(progressive=True),
    "trailing.JPEG": lambda: encoded() + bytes(300),
    "transparent.png": lambda: encoded("RGBA", "PNG"),
    "palette.PNG": lambda: encoded("P", "PNG"),
    "grey_16_bit.png": lambda: encoded("I;16", "PNG"),
}


@pytest.fixture(scope="module")
def oddities(tmp_path_factory):
    """A tree of all the oddities, opened with nothing left out."""
    root = tmp_path_factory.mktemp("odd")
    (root / "train" / "n02105855").mkdir(parents=True)
    for name, make in ODDITIES.items():
        (root / "train" / "n02105855" / name).write_bytes(make())
    return ImageTree("tree", str(root / "train")).open(root / "cache", lambda *_: None).samples


def loaded(loader, samples, **options):
    with loader(samples=samples, transform=TRANSFORM, batch_size=len(samples), seed=5, **options) as one:
        (batch,) = one.epoch(0)
    return batch.data[torch.from_numpy(np.argsort(batch.ids))]


@pytest.fixture(scope="module")
def engines(oddities):
    """What PIL and DALI make of them, in the order of the samples."""
    return loaded(PyTorchLoader, oddities, num_workers=0), loaded(DaliLoader, oddities)


def test_every_oddity_is_a_sample_whatever_the_case_of_its_suffix(oddities):
    assert {path.rpartition("/")[2] for path in oddities.paths} == set(ODDITIES)


@pytest.mark.parametrize("name", ODDITIES)
def test_pil_and_dali_make_the_same_pixels_of_it(name, oddities, engines):
    at = [path.rpartition("/")[2] for path in oddities.paths].index(name)
    std = torch.tensor(TRANSFORM.std).view(3, 1, 1)
    apart = ((engines[0][at] - engines[1][at]) * std * 255).abs()
    assert apart.mean() < GREY_LEVELS
    assert engines[0][at].std() > 0.5, "a picture with nothing in it agrees with anything"


def test_spdl_decodes_them_all_with_pil_unless_told_otherwise(oddities, engines):
    assert torch.equal(loaded(SpdlLoader, oddities), engines[0])


def test_a_tag_that_says_to_turn_the_picture_is_ignored_as_torchvisions_image_folder_does():
    image = decode(ODDITIES["turned.JPEG"]())
    assert image.size == (WIDTH, HEIGHT)
    assert image.tobytes() == decode(encoded()).tobytes()


def test_sixteen_bits_are_scaled_to_eight_not_cut_off():
    whole = np.asarray(decode(encoded("I;16", "PNG")), int)
    assert np.abs(whole - np.asarray(picture("L").convert("RGB"), int)).max() <= 1


@pytest.mark.process
def test_damaged_exif_data_fill_no_log_with_warnings(tmp_path):
    path = tmp_path / "damaged.JPEG"
    path.write_bytes(ODDITIES["damaged_exif.JPEG"]())
    code = "import sys; from loaders.pipeline.image import decode; print(decode(open(sys.argv[1], 'rb').read()).size)"
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert (ran.stdout.strip(), ran.stderr) == (f"({WIDTH}, {HEIGHT})", "")
