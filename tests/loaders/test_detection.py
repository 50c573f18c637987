"""Object detection's pipeline: pictures, boxes and masks that stay together, the same for every loader and worker."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from harness.datasets.coco import CocoLike
from loaders.base import Samples
from loaders.errors import SampleError
from loaders.pipeline import Item, StageTimes, load_item
from loaders.pipeline.detection import CATEGORY_CLASSES, DetectionPipeline
from loaders.pipeline.detection_transforms import fit_size

SMALL = DetectionPipeline(min_size=64, max_size=107)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    made = CocoLike("coco", samples=12, scale=0.02, seed=2)
    return made.open(tmp_path_factory.mktemp("made"), lambda *_: None).samples


@pytest.fixture
def square(tmp_path):
    """A black picture of 60 x 40 pixels with a white thing at x 10 to 30, y 5 to 25, and its annotation."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[5:25, 10:30] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    columns = {
        "boxes": pa.array([[[10, 5, 20, 20]]], pa.list_(pa.list_(pa.float32()))),
        "categories": pa.array([[18]], pa.list_(pa.int64())),
        "segments": pa.array([[[[10, 5, 30, 5, 30, 25, 10, 25]]]], pa.list_(pa.list_(pa.list_(pa.float32())))),
    }
    return Samples(tmp_path, ("a.png",), np.array([17]), np.array([(tmp_path / "a.png").stat().st_size]), columns)


def bits(masks, width):
    return np.unpackbits(masks, axis=-1)[..., :width].astype(bool)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((640, 480), (1066, 800)),
        ((480, 640), (800, 1066)),
        ((640, 320), (1333, 666)),  # the longer edge bounds it
        ((500, 500), (800, 800)),
        ((2000, 1600), (1000, 800)),
        ((3, 900), (4, 1333)),
    ],
)
def test_the_shorter_edge_becomes_800_unless_the_longer_one_would_pass_1333_as_torchvision_has_it(before, after):
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    assert fit_size(*before, min_size=800, max_size=1333) == after
    theirs = GeneralizedRCNNTransform(800, 1333, [0.0] * 3, [1.0] * 3).eval()
    (image, _) = theirs.resize(torch.zeros(3, *before[::-1]), None)
    assert (image.shape[2], image.shape[1]) == after


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_pixels_box_and_mask_go_the_same_way(square, flip):
    pipeline = DetectionPipeline(min_size=80, max_size=200, flip=flip, mean=(0, 0, 0), std=(1, 1, 1))
    item = load_item(pipeline, square, 0, seed=0, epoch=0)
    assert item.data.shape == (3, 80, 120)
    left = 120 - 60 if flip else 20
    assert item.target["boxes"].tolist() == [[left, 10.0, left + 40, 50.0]]
    assert item.target["classes"].tolist() == [17]  # COCO's 18, a dog, is the 17th kind
    mask = bits(item.target["masks"], 120)[0]
    white = item.data[0].numpy() > 0.5
    assert (mask != white).mean() < 0.02
    assert mask.sum() == pytest.approx(1600, rel=0.06)


@pytest.mark.process
def test_masks_agree_with_those_that_pycocotools_draws(samples):
    from pycocotools import mask as official

    pipeline = DetectionPipeline(min_size=200, max_size=400, flip=0.0)
    compared = 0
    for sample_id in range(len(samples)):
        item = load_item(pipeline, samples, sample_id, seed=0, epoch=0)
        _, height, width = item.data.shape
        with Image.open(samples.path(sample_id)) as image:
            ratio = np.array([width, height]) / image.size
        ours = bits(item.target["masks"], width)
        for mask, thing in zip(ours, samples.columns["segments"][sample_id].as_py(), strict=True):
            outlines = [(np.reshape(one, (-1, 2)) * ratio).ravel().tolist() for one in thing]
            theirs = official.decode(official.merge(official.frPyObjects(outlines, height, width))).astype(bool)
            if theirs.sum() > 500:
                assert (mask & theirs).sum() / (mask | theirs).sum() > 0.9
                compared += 1
    assert compared > 10


@pytest.mark.process
def test_a_flip_is_drawn_for_each_sample_and_epoch_as_often_as_asked(samples):
    half = DetectionPipeline(min_size=32, max_size=64).transforms[1]
    image = Image.new("RGB", (8, 8))
    image.putpixel((0, 0), (255, 255, 255))
    flipped = []
    for sample_id in range(400):
        item = Item(sample_id, 0, 0, image, {"boxes": np.zeros((0, 4), np.float32)})
        flipped.append(half(item).data.getpixel((7, 0))[0] == 255)
    assert 150 < sum(flipped) < 250
    again = [half(Item(n, 0, 1, image, {"boxes": np.zeros((0, 4), np.float32)})).data for n in range(400)]
    assert [one.getpixel((7, 0))[0] == 255 for one in again] != flipped


@pytest.mark.process
def test_a_batch_is_padded_and_its_things_stand_in_the_order_of_its_pictures(samples):
    items = [load_item(SMALL, samples, sample_id, seed=0, epoch=0) for sample_id in range(6)]
    data, labels, extra = SMALL.collate(items)
    sizes = extra["sizes"].tolist()
    assert data.shape == (6, 3, max(h for h, _ in sizes), max(w for _, w in sizes))
    assert (data.dtype, labels.dtype, extra["boxes"].dtype) == (torch.float32, torch.int64, torch.float32)
    assert [extra[name].dtype for name in ("counts", "sizes", "masks")] == [torch.int64, torch.int64, torch.uint8]
    assert len(labels) == len(extra["boxes"]) == len(extra["masks"]) == int(extra["counts"].sum())
    assert len({tuple(size) for size in sizes}) > 1
    start = 0
    for number, (item, (height, width)) in enumerate(zip(items, sizes, strict=True)):
        assert torch.equal(data[number, :, :height, :width], item.data)
        assert not data[number, :, height:].any()
        assert not data[number, :, :, width:].any()
        count = int(extra["counts"][number])
        assert torch.equal(extra["boxes"][start : start + count], torch.from_numpy(item.target["boxes"]))
        masks = bits(extra["masks"][start : start + count].numpy(), data.shape[3])
        assert np.array_equal(masks[:, :height, :width], bits(item.target["masks"], width))
        assert not masks[:, height:].any()
        start += count
    assert set(labels.tolist()) <= set(range(1, 81))


def test_a_batch_without_any_things_has_tensors_of_no_rows(square):
    columns = {name: pa.array([[]], column.type) for name, column in square.columns.items()}
    bare = Samples(square.root, square.paths, np.array([0]), square.sizes, columns)
    data, labels, extra = SMALL.collate([load_item(SMALL, bare, 0, seed=0, epoch=0)])
    assert (len(labels), extra["boxes"].shape, extra["counts"].tolist()) == (0, (0, 4), [0])
    assert extra["masks"].shape == (0, data.shape[2], -(-data.shape[3] // 8))


def test_without_masks_no_outlines_are_needed(square):
    columns = {name: square.columns[name] for name in ("boxes", "categories")}
    given = Samples(square.root, square.paths, square.labels, square.sizes, columns)
    pipeline = DetectionPipeline(min_size=32, max_size=64, masks=False)
    tensors = pipeline.collate([load_item(pipeline, given, 0, seed=0, epoch=0)])
    assert set(tensors.extra) == {"boxes", "counts", "sizes"}
    with pytest.raises(SampleError, match=r"sample 0 .*'segments'"):
        load_item(SMALL, given, 0, seed=0, epoch=0)


@pytest.mark.process
def test_every_stage_of_table_1_is_timed_by_its_name(samples):
    times = StageTimes()
    load_item(SMALL, samples, 0, seed=0, epoch=0, times=times)
    assert list(times.seconds()) == ["read", "decode", "Resize", "RandomHorizontalFlip", "ToTensor", "Normalize"]


def test_a_pipeline_is_compared_and_pickled_by_value():
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL
    assert DetectionPipeline(mean=[0.5, 0.5, 0.5]) == DetectionPipeline(mean=(0.5, 0.5, 0.5))


def test_classes_are_cocos_categories_without_the_gaps():
    from harness.datasets.coco.annotations import CATEGORY_IDS

    assert {category: number for number, category in enumerate(CATEGORY_IDS, start=1)} == CATEGORY_CLASSES


@pytest.mark.parametrize(("key", "value"), [("min_size", 0), ("max_size", 10), ("flip", 2), ("std", (1, 0, 1))])
def test_an_impossible_pipeline_is_refused_by_its_key(key, value):
    with pytest.raises(ValueError, match=rf"transform\.{key}="):
        DetectionPipeline(**{"min_size": 32, "max_size": 64, key: value})
