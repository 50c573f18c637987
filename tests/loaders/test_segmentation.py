"""The pipeline of volumes: what its steps do, that they are drawn by sample alone, and what a loader makes of them."""

import os
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from loaders import Item, PyTorchLoader, SampleError
from loaders.pipeline import load_item
from loaders.pipeline.augment3d import Cast, GaussianNoise, RandomBrightness, RandomFlip
from loaders.pipeline.crop3d import Box, RandomCrop, components
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.volumes import map_array
from tests.loaders.small_data import make_volumes

SHAPE = (20, 24, 28)


def blobs(seed):
    """Labels (D, H, W) with two kidneys, a tumour and a stray voxel."""
    labels = np.zeros(SHAPE, np.uint8)
    rng = np.random.default_rng(seed)
    z, y, x = (int(each) for each in rng.integers(1, 5, 3))
    labels[z : z + 6, y : y + 5, x : x + 4] = 1
    labels[z + 8 : z + 13, y : y + 5, x + 12 : x + 17] = 1
    labels[z + 2 : z + 4, y + 1 : y + 3, x + 3 : x + 6] = 2
    labels[-1, -1, -1] = 1
    return labels


@pytest.fixture
def volumes(tmp_path):
    """Makes a tree of volumes in MLPerf's form, of several sizes."""
    return partial(make_volumes, tmp_path)


PIPELINE = SegmentationPipeline(crop=RandomCrop(16))


def items(count, **target):
    """Items of ones, by id."""
    for k in range(count):
        data = np.ones((1, 8, 8, 8), np.float32)
        yield Item(k, 3, 1, data, {"label": np.ones(data.shape, np.uint8), **target})


def flooded(mask):
    """Boxes of the parts of a mask, voxel by voxel."""
    left, boxes = {tuple(int(i) for i in at) for at in np.argwhere(mask)}, []
    while left:
        part, edge = [], [min(left)]
        left.discard(edge[0])
        while edge:
            at = edge.pop()
            part.append(at)
            for axis in range(3):
                for step in (-1, 1):
                    near = tuple(c + step * (k == axis) for k, c in enumerate(at))
                    if near in left:
                        left.discard(near)
                        edge.append(near)
        low, high = np.min(part, axis=0), np.max(part, axis=0) + 1
        boxes.append(Box(tuple(low.tolist()), tuple(high.tolist())))
    return boxes


@pytest.mark.parametrize("density", [0.02, 0.1, 0.25, 0.35, 0.6, 0.97])
def test_connected_parts_are_those_that_a_flood_finds(density):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        mask = rng.random(tuple(rng.integers(1, 9, 3))) < density
        assert sorted(components(mask)) == sorted(flooded(mask))


def test_two_that_touch_by_an_edge_alone_are_two():
    mask = np.zeros((2, 2, 2), np.bool_)
    mask[0, 0, 0] = mask[1, 1, 0] = True
    assert len(components(mask)) == 2
    mask[0, 1, 0] = True
    assert components(mask) == [Box((0, 0, 0), (2, 2, 1))]
    assert components(np.zeros((3, 3, 3), np.bool_)) == []


def test_a_balanced_crop_holds_a_part_of_the_chosen_class_and_any_crop_lies_in_the_volume():
    always = RandomCrop(12, oversampling=1.0)
    labels = blobs(0)
    large = [box for value in (1, 2) for box in components(labels == value) if box.volume > 1]
    seen = set()
    for seed in range(60):
        start = always.start(np.random.default_rng(seed), labels)
        assert all(0 <= at <= length - 12 for at, length in zip(start, SHAPE, strict=True))
        held = [
            box
            for box in large
            if all(s <= a and b <= s + 12 for s, a, b in zip(start, box.start, box.stop, strict=True))
        ]
        assert held
        seen |= set(held)
    assert seen == set(large)


def test_a_crop_smaller_than_what_it_is_to_hold_lies_within_it():
    labels = np.zeros((20, 20, 20), np.uint8)
    labels[2:18, 3:19, 1:20] = 1
    for seed in range(30):
        z, y, x = RandomCrop(8, 1.0).start(np.random.default_rng(seed), labels)
        assert (labels[z : z + 8, y : y + 8, x : x + 8] == 1).all()


def test_crops_reach_every_corner_and_the_share_that_holds_foreground_is_as_given():
    labels = np.zeros((40, 10, 10), np.uint8)
    labels[30:32] = 1
    starts = [RandomCrop(8, 0.4).start(np.random.default_rng(seed), labels) for seed in range(400)]
    assert {start[1] for start in starts} == {0, 1, 2}
    anywhere = [RandomCrop(8, 0.0).start(np.random.default_rng(seed), labels)[0] for seed in range(400)]
    assert (min(anywhere), max(anywhere)) == (0, 32)
    whole = [sum(24 <= z <= 30 for z in found) / 400 for found in ([s[0] for s in starts], anywhere)]
    assert whole[1] == pytest.approx(7 / 33, abs=0.06)
    assert whole[0] == pytest.approx(0.4 + 0.6 * 7 / 33, abs=0.08)


def test_a_volume_without_foreground_is_cropped_anywhere():
    assert RandomCrop(4, 1.0).start(np.random.default_rng(0), np.zeros((5, 5, 5), np.uint8)) <= (1, 1, 1)


def test_a_volume_smaller_than_the_cube_is_padded_with_its_outermost_voxels():
    data = np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1).repeat(20, 2).repeat(9, 3)
    item = RandomCrop(8)(Item(0, 0, 0, data, {"label": (data > 4).astype(np.uint8)}))
    assert item.data.shape == item.target["label"].shape == (1, 8, 8, 8)
    assert item.data[0, :, 0, 0].tolist() == [0, 0, 1, 2, 3, 4, 5, 5]
    assert item.target["label"][0, :, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_a_flip_mirrors_volume_and_labels_alike_each_axis_in_a_third_of_the_samples():
    axes = [RandomFlip().axes(item) for item in items(600)]
    for axis in (1, 2, 3):
        assert sum(axis in drawn for drawn in axes) / 600 == pytest.approx(1 / 3, abs=0.07)
    data = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    flipped = RandomFlip(1.0)(Item(0, 0, 0, data, {"label": data.astype(np.uint8)}))
    assert np.array_equal(flipped.data, data[:, ::-1, ::-1, ::-1])
    assert np.array_equal(flipped.target["label"], flipped.data.astype(np.uint8))


def test_one_in_ten_is_made_brighter_by_the_references_factors_and_one_in_ten_noisy():
    factors = np.array([RandomBrightness().factor(item) for item in items(1000)])
    assert (factors != 1).mean() == pytest.approx(0.1, abs=0.03)
    assert 1.7 <= factors[factors != 1].min() < 1.8 < 2.2 < factors.max() <= 2.3
    noises = [noise for item in items(1000) if (noise := GaussianNoise().noise(item, (1, 8, 8, 8))) is not None]
    deviations = [float(noise.std()) for noise in noises]
    assert len(noises) / 1000 == pytest.approx(0.1, abs=0.03)
    assert 0.03 < np.mean(deviations) < 0.07
    assert max(deviations) < 0.11
    for step in (RandomBrightness(), GaussianNoise()):
        changed = [(item.data != 1).any() for item in map(step, items(40))]
        assert any(changed)
        assert not all(changed)
        assert all((item.target["label"] == 1).all() for item in map(step, items(5)))


def test_cast_makes_tensors_of_what_is_already_right_without_a_copy():
    item = next(items(1))
    data = item.data
    item = Cast()(item)
    assert (item.data.dtype, item.target["label"].dtype) == (torch.float32, torch.uint8)
    assert item.data.data_ptr() == data.ctypes.data


def test_the_steps_are_those_of_the_papers_table():
    assert [step.name for step in PIPELINE.transforms] == [
        "RandomCrop", "RandomFlip", "RandomBrightness", "GaussianNoise", "Cast",
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(PIPELINE)) == PIPELINE


def test_what_is_made_of_a_sample_depends_on_seed_epoch_and_id_alone(volumes):
    samples = volumes(3)
    first = [load_item(PIPELINE, samples, k, seed=1, epoch=2) for k in (0, 1, 2)]
    again = [load_item(PIPELINE, samples, k, seed=1, epoch=2) for k in (2, 1, 0)][::-1]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.data, other.data)
        assert torch.equal(one.target["label"], other.target["label"])
    assert not torch.equal(first[0].data, load_item(PIPELINE, samples, 0, seed=1, epoch=3).data)
    assert not torch.equal(first[0].data, load_item(PIPELINE, samples, 0, seed=2, epoch=2).data)


@pytest.mark.process
def test_a_loader_yields_cubes_that_are_the_files_own_voxels(volumes):
    samples = volumes(5)
    plain = replace(
        PIPELINE,
        flip=RandomFlip(0.0),
        brightness=RandomBrightness(probability=0.0),
        noise=GaussianNoise(probability=0.0),
    )
    with PyTorchLoader(samples=samples, transform=plain, batch_size=2, seed=0, num_workers=2) as loader:
        batches = list(loader.epoch(0))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert sorted(i for batch in batches for i in batch.ids) == [0, 1, 2, 3, 4]
    for batch in batches:
        assert batch.nbytes == samples.sizes[batch.ids].sum()
        assert (batch.data.dtype, batch.labels.dtype) == (torch.float32, torch.uint8)
        assert batch.data.shape == batch.labels.shape == (len(batch), 1, 16, 16, 16)
        for cube, labels, k in zip(batch.data, batch.labels, batch.ids, strict=True):
            whole = np.load(samples.path(int(k)))[0]
            z, y, x = (int(at[0]) for at in np.nonzero(whole == cube[0, 0, 0, 0].numpy()))
            place = slice(z, z + 16), slice(y, y + 16), slice(x, x + 16)
            assert np.array_equal(whole[place], cube[0].numpy())
            assert np.array_equal(np.load(samples.root / f"case_{k:05d}_y.npy")[0][place], labels[0].numpy())


def test_a_mapped_volume_is_read_whole_and_never_copied(tmp_path):
    np.save(tmp_path / "large.npy", np.ones((1, 64, 256, 256), np.float32))
    private, mapped = resident_kb("RssAnon"), resident_kb("RssFile")
    array = map_array(tmp_path / "large.npy")
    cube = array[:, :8, :8, :8].copy()
    assert resident_kb("RssFile") - mapped >= 16_384
    assert resident_kb("RssAnon") - private < 2_000
    del array
    assert resident_kb("RssFile") - mapped < 2_000
    assert cube.sum() == 512


def resident_kb(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("case_00001_x.npy", os.remove, "cannot be read"),
        ("case_00001_y.npy", os.remove, "cannot be read"),
        ("case_00001_x.npy", cut, "case_00001_x.npy "),
        ("case_00001_y.npy", lambda path: path.write_bytes(b"text"), "case_00001_y.npy "),
        ("case_00001_x.npy", lambda path: np.save(path, np.zeros((1, 9, 9, 9))), "float64"),
        ("case_00001_y.npy", lambda path: np.save(path, np.zeros((1, 9, 9, 9), np.uint8)), "labels"),
    ],
)  # fmt: skip
def test_a_broken_volume_names_its_sample_and_what_is_wrong(volumes, name, harm, says):
    samples = volumes(2)
    harm(samples.root / name)
    with pytest.raises(SampleError, match=rf"^sample 1 .*case_00001_x\.npy\).*{says}"):
        load_item(PIPELINE, samples, 1, seed=0, epoch=0)


def test_a_dataset_without_segmentations_says_so(volumes):
    samples = replace(volumes(1), columns={})
    with pytest.raises(SampleError, match="kits19_small"):
        load_item(PIPELINE, samples, 0, seed=0, epoch=0)
