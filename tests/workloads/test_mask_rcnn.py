"""Mask R-CNN: torchvision's model with its own losses, on what the pipeline gives it."""

from dataclasses import replace

import pytest
import torch

from harness.datasets.coco import CocoLike
from harness.errors import CellError, ConfigError
from harness.workloads import make_step
from harness.workloads.mask_rcnn import MaskRCNN
from loaders.pytorch import PyTorchLoader

TINY = MaskRCNN(batch_size=2, min_size=64, backbone="resnet18", channels=32, proposals=16)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    made = CocoLike("coco", samples=4, scale=0.02, seed=2)
    return made.open(tmp_path_factory.mktemp("made"), lambda *_: None).samples


def test_of_full_size_it_is_torchvisions_model():
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    with torch.device("meta"):
        ours = MaskRCNN().model().state_dict()
        theirs = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=81).state_dict()
    assert {name: tuple(one.shape) for name, one in ours.items()} == {
        name: tuple(one.shape) for name, one in theirs.items()
    }


def test_the_batch_is_table_3s():
    assert (MaskRCNN().batch_size, MaskRCNN().transform.min_size, MaskRCNN().transform.max_size) == (48, 800, 1333)
    assert MaskRCNN(min_size=400).transform.max_size == 666


@pytest.mark.process
def test_the_loss_falls_on_a_tiny_set_through_the_pytorch_loader(samples):
    step = make_step(TINY, {"kind": "cpu"}, seed=0)
    with PyTorchLoader(
        samples=samples, transform=TINY.transform, batch_size=2, seed=0, num_workers=1, persistent_workers=True
    ) as loader:
        for epoch in range(12):
            for batch in loader.epoch(epoch):
                step(batch)
    losses = torch.stack(step.losses)
    assert torch.isfinite(losses).all()
    assert losses[-6:].mean() < 0.85 * losses[:4].mean()


@pytest.mark.process
def test_the_masks_that_the_model_learns_are_the_pipelines(samples):
    pictures = []
    model = TINY.model().train()
    model.register_forward_pre_hook(lambda _, given: pictures.append(given))
    with PyTorchLoader(samples=samples, transform=TINY.transform, batch_size=4, seed=0, num_workers=0) as loader:
        (batch,) = loader.epoch(0)
    TINY.loss(model, batch)
    images, targets = pictures[0]
    assert [tuple(image.shape[1:]) for image in images] == [tuple(size) for size in batch.extra["sizes"].tolist()]
    assert sum(len(target["labels"]) for target in targets) == len(batch.labels)
    for image, target in zip(images, targets, strict=True):
        assert target["masks"].shape == (len(target["boxes"]), *image.shape[1:])
        for mask, box in zip(target["masks"], target["boxes"], strict=True):
            rows, columns = torch.where(mask > 0)
            if len(rows):
                found = torch.stack((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)).float()
                assert torch.allclose(found, box, atol=2.0)


def test_a_picture_without_things_is_trained_on_too():
    batch = TINY.example()
    extra = {**batch.extra, "boxes": torch.zeros(0, 4), "counts": torch.zeros(2, dtype=torch.int64)}
    bare = replace(batch, labels=batch.labels[:0], extra={**extra, "masks": batch.extra["masks"][:0]})
    step = make_step(TINY, {"kind": "cpu"}, seed=0)
    step(bare)
    assert torch.isfinite(step.losses[0])


def test_stages_that_are_not_to_learn_keep_their_weights():
    counts = []
    for layers in range(6):
        model = replace(TINY, trainable_layers=layers).model()
        counts.append(sum(one.requires_grad for name, one in model.named_parameters() if ".body." in name))
    assert counts[0] == 0
    assert counts == sorted(set(counts))
    assert counts[5] == len([name for name, _ in model.named_parameters() if ".body." in name])


def test_a_class_that_the_model_does_not_have_is_named():
    batch = TINY.example()
    with pytest.raises(CellError, match=r"class 81.*num_classes=81"):
        TINY.check(replace(batch, labels=torch.full_like(batch.labels, 81)))


def test_a_box_without_an_area_is_refused_before_the_model_sees_it():
    batch = TINY.example()
    flat = batch.extra["boxes"].clone()
    flat[1, 2] = flat[1, 0]
    with pytest.raises(CellError, match=r"\[0, 1\]"):
        TINY.check(replace(batch, extra={**batch.extra, "boxes": flat}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 0),
        ("min_size", 16),
        ("max_size", 63),
        ("num_classes", 1),
        ("backbone", "vgg"),
        ("trainable_layers", 6),
        ("channels", 0),
        ("proposals", 2),
    ],
)
def test_an_impossible_workload_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"mask_rcnn\.{key}="):
        MaskRCNN(**{"batch_size": 2, "min_size": 64, key: value})


def test_the_model_takes_pictures_as_they_come_without_another_resize_or_normalisation():
    model = TINY.model().train()
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    batch = TINY.example()
    TINY.loss(model, batch)
    height, width = batch.extra["sizes"][0].tolist()
    assert torch.equal(seen[0][:, :, :height, :width], batch.data)
    assert not seen[0][:, :, height:].any()
