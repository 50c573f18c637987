"""VGG-19 and ViT-B/16: the published models at full size, and small forms that learn."""

import pytest
import torch

from harness.errors import ConfigError
from harness.workloads import make_step
from harness.workloads.classification import VGG19, ViTB16
from loaders.pytorch import PyTorchLoader

TINY = (
    VGG19(batch_size=8, image_size=32, num_classes=2, width=0.05),
    ViTB16(batch_size=8, image_size=32, num_classes=2, layers=1),
)


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
def test_the_loss_falls_on_a_tiny_set_through_the_pytorch_loader(workload, make_coloured):
    colours = make_coloured(16, classes=2)
    step = make_step(workload, {"kind": "cpu"}, seed=2)
    with PyTorchLoader(samples=colours, transform=workload.transform, batch_size=8, seed=0, num_workers=0) as loader:
        for epoch in range(30):  # a layer drops out at random
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
