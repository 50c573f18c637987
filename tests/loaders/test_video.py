"""Clips through SPDL, PyTorch and Decord: the same frames of the same files, and what each does with a damaged one."""

import re
from pathlib import Path

import decord
import numpy as np
import pytest
import torch

from harness.datasets.clips import Clips
from harness.errors import DatasetError
from harness.workloads.video import VideoClips
from loaders import LoaderConfigError, LoaderError, PyTorchLoader, SampleError, Samples, SpdlLoader
from loaders.decord import DecordLoader
from loaders.pipeline.image import ImageTransform
from loaders.pipeline.video import ClipTransform

CLIPS = Clips(name="clips", samples=5, classes=2, frames=40, width=64, height=48)
TRANSFORM = ClipTransform(size=32, frames=3, interval=2, skip=4)
COMMON = {"transform": TRANSFORM, "batch_size": 2, "seed": 0}


@pytest.fixture
def clips(tmp_path: Path) -> Samples:
    for sample_id in range(CLIPS.samples):
        path = tmp_path / CLIPS.path(sample_id)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CLIPS.clip(sample_id))
    sizes = np.array([(tmp_path / path).stat().st_size for path in CLIPS.paths()])
    return Samples(tmp_path, CLIPS.paths(), CLIPS.labels(), sizes)


def loaded(loader):
    """Return the clips of an epoch and their labels by id; a sample that comes twice fails."""
    found = {}
    with loader:
        for batch in loader.epoch(0):
            for sample_id, clip, label in zip(batch.ids.tolist(), batch.data, batch.labels.tolist(), strict=True):
                assert sample_id not in found
                found[sample_id] = (clip.clone(), label)
    return found


def test_three_loaders_have_the_same_frames_of_every_clip_once(clips):
    ours = loaded(SpdlLoader(samples=clips, **COMMON, num_threads=2))
    assert sorted(ours) == list(range(5))
    for other in (PyTorchLoader(samples=clips, **COMMON, num_workers=1), DecordLoader(samples=clips, **COMMON)):
        theirs = loaded(other)
        assert [theirs[sample_id][1] for sample_id in range(5)] == CLIPS.labels().tolist()
        for sample_id, (clip, _) in theirs.items():
            assert clip.shape == (9, 32, 32, 3) and clip.float().std() > 5
            assert (clip.float() - ours[sample_id][0].float()).abs().mean() < 1


def test_decord_has_every_clip_once_in_a_later_epoch_too(clips):
    with DecordLoader(samples=clips, **COMMON) as loader:
        orders = [[i for batch in loader.epoch(epoch) for i in batch.ids.tolist()] for epoch in range(2)]
    assert sorted(orders[0]) == list(range(5)) and orders[0] == orders[1]


@pytest.mark.parametrize("count", [2, 9, 10, 16, 40])
@pytest.mark.parametrize(("frames", "interval", "skip"), [(1, 0, 0), (3, 0, 1), (3, 2, 0), (8, 1, 5), (2, 3, 3)])
def test_the_frames_that_are_taken_are_decords(count, frames, interval, skip, tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(Clips(name="c", samples=1, classes=1, frames=count, width=32, height=32).clip(0))
    shape = (frames, 32, 32, 3)
    videos = decord.VideoLoader([str(path)], ctx=[decord.cpu(0)], shape=shape, interval=interval, skip=skip, shuffle=0)
    theirs = [int(frame) for _, places in videos for frame in places.asnumpy()[:, 1]]
    assert ClipTransform(32, frames, interval, skip).taken(count) == theirs


def test_a_damaged_clip_ends_decord_at_once_and_one_sample_of_the_others(clips):
    clips.path(3).write_bytes(b"no video")
    with DecordLoader(samples=clips, **COMMON) as loader, pytest.raises(LoaderError, match="cannot open all of 5"):
        next(loader.epoch(0))
    with SpdlLoader(samples=clips, **COMMON) as loader, pytest.raises(SampleError, match=re.escape(clips.paths[3])):
        list(loader.epoch(0))
    assert sorted(loaded(SpdlLoader(samples=clips, **COMMON, on_error="skip"))) == [0, 1, 2, 4]


def test_a_clip_that_is_too_short_for_a_run_is_named(clips):
    transform = ClipTransform(size=32, frames=8, interval=5)
    with (
        SpdlLoader(samples=clips, **COMMON | {"transform": transform}) as loader,
        pytest.raises(SampleError, match="40 frames: too short for one run of 8"),
    ):
        list(loader.epoch(0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"transform": ImageTransform(size=32)}, "Decord takes runs of frames, a ClipTransform"),
        ({"on_error": "skip"}, "Decord can neither leave a file out nor be timed"),
        ({"sample_timeout_s": 1.0}, "Decord can neither leave a file out nor be timed"),
    ],
)
def test_what_decord_cannot_do_is_refused(changed, said, clips):
    with pytest.raises(LoaderConfigError, match=said):
        DecordLoader(samples=clips, **COMMON | changed)


def test_a_path_with_a_comma_is_refused(tmp_path):
    (tmp_path / "a,b.mp4").write_bytes(b"")
    samples = Samples(tmp_path, ("a,b.mp4",), np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(LoaderConfigError, match=r"a,b\.mp4: Decord takes no path with a comma"):
        DecordLoader(samples=samples, **COMMON)


def test_equal_recipes_make_equal_clips_and_others_do_not():
    assert CLIPS.clip(1) == CLIPS.clip(1) != CLIPS.clip(2)


def test_a_machine_without_ffmpeg_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DatasetError, match="ffmpeg is not installed; apt-get install ffmpeg"):
        CLIPS.clip(0)


def test_the_workload_trains_on_what_its_pipeline_makes(clips):
    workload = VideoClips(batch_size=2, image_size=32, frames=3, interval=2, skip=4, num_classes=2)
    assert workload.transform == TRANSFORM
    with SpdlLoader(samples=clips, **COMMON, num_threads=1) as loader:
        batch = next(loader.epoch(0))
    workload.check(batch)
    assert workload.example().data.shape[2:] == batch.data.shape[2:]
    loss = workload.loss(workload.model(), batch)
    assert torch.isfinite(loss) and loss.ndim == 0
