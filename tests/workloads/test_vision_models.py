"""VGG-19 and ViT-B/16: the published models at full size, and small forms that learn."""

import numpy as np
import pytest
import torch
from PIL import Image

from harness.errors import ConfigError
from harness.workloads import choose_kind, make_step
from harness.workloads.classification import VGG19, ViTB16
from loaders.base import Samples
from loaders.pytorch import PyTorchLoader

TINY = (
    VGG19(batch_size=8, image_size=32, num_classes=2, width=0.05),
    ViTB16(batch_size=8, image_size=32, num_classes=2, layers=1),
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a step is slower with more
    yield
    torch.set_num_threads(before)


@pytest.fixture
def colours(tmp_path):
    """Sixteen noisy pictures of two classes that differ in colour."""
    rng = np.random.default_rng(0)
    for number in range(16):
        pixels = rng.integers(0, 120, (40, 40, 3), dtype=np.uint8)
        pixels[..., 2 * (number % 2)] += 120
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    paths = tuple(f"{number}.png" for number in range(16))
    sizes = np.array([(tmp_path / path).stat().st_size for path in paths])
    return Samples(tmp_path, paths, np.arange(16, dtype=np.int64) % 2, sizes)


@pytest.mark.parametrize(("workload", "name"), [(VGG19, "vgg19"), (ViTB16, "vit_b_16")])
def test_of_full_size_it_is_torchvisions_model(workload, name):
    import torchvision

    with torch.device("meta"):
        ours = workload(batch_size=2).model().state_dict()
        theirs = getattr(torchvision.models, name)(weights=None).state_dict()
    assert {key: tuple(one.shape) for key, one in ours.items()} == {
        key: tuple(one.shape) for key, one in theirs.items()
    }


@pytest.mark.process
@pytest.mark.parametrize("workload", TINY, ids=lambda one: one.name)
def test_the_loss_falls_on_a_tiny_set_through_the_pytorch_loader(workload, colours):
    step = make_step(workload, {"kind": "cpu"}, seed=2)
    with PyTorchLoader(samples=colours, transform=workload.transform, batch_size=8, seed=0, num_workers=0) as loader:
        for epoch in range(15):
            for batch in loader.epoch(epoch):
                step(batch)
    losses = torch.stack(step.losses)
    assert torch.isfinite(losses).all()
    assert losses[-6:].mean() < 0.9 * losses[:6].mean()


def test_a_vision_transformer_refuses_sizes_that_are_no_whole_patches_in_one_line():
    with pytest.raises(ConfigError, match=r"^workloads\.vit_b16\.image_size=230: .*16.*224"):
        ViTB16(batch_size=2, image_size=230)
    assert ViTB16(batch_size=2, image_size=240).transform.size == 240


@pytest.mark.parametrize(
    ("workload", "key", "value"),
    [
        (VGG19, "width", 0),
        (VGG19, "width", 1.5),
        (VGG19, "image_size", 16),
        (ViTB16, "layers", 0),
        (ViTB16, "layers", 13),
    ],
)
def test_an_impossible_workload_is_refused_by_its_key(workload, key, value):
    with pytest.raises(ConfigError, match=rf"{key}={value}"):
        workload(**{"batch_size": 2, key: value})


def test_vgg19_is_emulated_only_on_an_assumption_of_the_users():
    with pytest.raises(ConfigError, match="vgg19"):
        choose_kind({"kind": "emulated"}, "vgg19")
    assumed = {"kind": "emulated", "seconds_per_sample": {"vgg19": 0.0014}}
    step = make_step(TINY[0], assumed, seed=0)
    assert (step.label, step.citation) == ("emulated: assumed 0.0014 s a sample", None)
