import pickle

import numpy as np
import pytest
import torch

from harness.datasets.kits19 import Kits19Like
from harness.errors import CellError, ConfigError
from harness.workloads import make_step
from harness.workloads.unet import dice_and_cross_entropy
from harness.workloads.unet3d import UNet3D
from loaders import Batch, PyTorchLoader

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
TINY = UNet3D(batch_size=3, crop_size=16, widths=(6, 12))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    made = Kits19Like("k", 6, 0.001).open(tmp_path_factory.mktemp("kits19"), lambda *told: None)
    return made.samples


def test_the_default_is_mlperfs_network():
    model = UNet3D().model()
    # 5 levels and the bottleneck, 32 to 320 channels: 7 encoder blocks' and 6 decoder blocks' convolutions.
    kinds = [type(part).__name__ for part in model.modules()]
    assert kinds.count("Conv3d") == 2 * 6 + 2 * 5 + 1
    assert kinds.count("ConvTranspose3d") == 5
    assert kinds.count("InstanceNorm3d") == 2 * 6 + 2 * 5
    assert [down[0].out_channels for down in model.down] == [64, 128, 256, 320, 320]
    assert [up.out_channels for up in model.up] == [320, 256, 128, 64, 32]
    assert 31e6 < sum(weight.numel() for weight in model.parameters()) < 32e6


def test_a_perfect_answer_has_no_loss_and_a_wrong_one_much():
    labels = torch.zeros(2, 1, 4, 4, 4, dtype=torch.uint8)
    labels[:, :, 1:3], labels[:, :, 3:] = 1, 2
    right = 100.0 * torch.nn.functional.one_hot(labels[:, 0].long(), 3).movedim(-1, 1)
    assert dice_and_cross_entropy(right, labels) < 1e-4
    assert dice_and_cross_entropy(-right, labels) > 10
    # Chance: ln(3) of cross entropy, and the overlap of a third with a half and with a quarter of the voxels.
    halves = 1 - (2 * (1 / 6) / (1 / 3 + 1 / 2) + 2 * (1 / 12) / (1 / 3 + 1 / 4)) / 2
    assert float(dice_and_cross_entropy(torch.zeros(2, 3, 4, 4, 4), labels)) == pytest.approx(
        (np.log(3) + halves) / 2, rel=1e-4
    )


@pytest.mark.process
def test_the_loss_falls_on_made_up_volumes_through_a_loader(samples):
    step = make_step(TINY, {"kind": "cpu"}, seed=0)
    step.warm_up()
    step.losses.clear()
    with PyTorchLoader(
        samples=samples, transform=TINY.transform, batch_size=3, seed=0, num_workers=2, device=step.device
    ) as loader:
        for epoch in range(15):
            for batch in loader.epoch(epoch):
                step(batch)
    losses = [float(loss) for loss in step.losses]
    assert len(losses) == 30
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:6])


def test_cubes_of_another_size_and_labels_beyond_the_classes_are_named():
    step = make_step(TINY, {"kind": "cpu"}, seed=0)
    example = TINY.example()
    with pytest.raises(CellError, match=r"\(3, 3, 16, 16\).*\(3, 1, 16, 16, 16\).*kits19_small"):
        step(Batch(example.ids, torch.zeros(3, 3, 16, 16), example.labels, 0))
    with pytest.raises(CellError, match="labels"):
        step(Batch(example.ids, example.data, torch.zeros(3), 0))
    with pytest.raises(CellError, match=r"label 4.*num_classes=3"):
        step(Batch(example.ids, example.data, example.labels + 4, 0))


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("batch_size", 0, "batch_size=0"),
        ("crop_size", 100, r"crop_size=100: expected a multiple of 32, 64 or more"),
        ("crop_size", 32, r"crop_size=32: expected a multiple of 32, 64 or more"),
        ("widths", (8, 0), "widths=0"),
        ("widths", (), r"widths=\[\]"),
        ("num_classes", 1, "num_classes=1"),
        ("oversampling", 1.5, "oversampling=1.5"),
    ],
)
def test_an_impossible_workload_is_refused_by_its_key(key, value, shown):
    with pytest.raises(ConfigError, match=rf"^workloads\.unet3d\.{shown}"):
        UNet3D(**{key: value})


def test_the_workload_is_data():
    made = UNet3D(widths=[8, 16], crop_size=32)
    assert pickle.loads(pickle.dumps(made)) == UNet3D(widths=(8, 16), crop_size=32)
    assert (made.batch_size, made.input_size, made.transform.crop.edge) == (3, 32, 32)


def test_a_class_that_is_not_there_and_not_predicted_counts_as_found():
    labels = torch.zeros(1, 1, 4, 4, 4, dtype=torch.uint8)
    sure = torch.zeros(1, 3, 4, 4, 4)
    sure[:, 0] = 200
    assert dice_and_cross_entropy(sure, labels) < 1e-4


@GPU
@pytest.mark.gpu
def test_a_whole_step_runs_on_a_gpu_in_bfloat16():
    step = make_step(UNet3D(batch_size=2), {"kind": "cuda"}, seed=0)
    step.warm_up()
    assert all(torch.isfinite(loss) for loss in step.losses)
