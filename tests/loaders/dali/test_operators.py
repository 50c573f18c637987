"""Whose operators run a pipeline is said, can be chosen, and changes nothing of what is promised."""

from __future__ import annotations

import os
import time

import pytest
import torch

from loaders import DaliLoader, ImageTransform, LoaderConfigError, SampleTimeoutError
from loaders.pipeline import load_item
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.speech import SpeechPipeline
from loaders.pipeline.timed import TimedPipeline

SMALL = ImageTransform(size=32)


def test_images_run_with_python_operators_when_asked_to_and_may_then_be_left_out(image_tree):
    samples = image_tree(9)
    samples.path(5).write_bytes(b"")
    with DaliLoader(
        samples=samples,
        transform=SMALL,
        batch_size=4,
        seed=0,
        operators="python",
        on_error="skip",
        sample_timeout_s=30.0,
    ) as loader:
        assert loader.notes == (
            "Python operators, for operators=python asks for them: threads run reading, decoding, RandomResizedCrop, "
            "RandomHorizontalFlip, Normalize, collation and hand batches to DALI's external_source",
        )
        batches = list(loader.epoch(1))
        assert list(loader.stats().skipped) == [5]
    for batch in batches:
        items = [load_item(SMALL, samples, int(k), seed=0, epoch=1) for k in batch.ids]
        assert torch.equal(batch.data, torch.stack([item.data for item in items]))


def test_what_dalis_image_pipeline_cannot_do_is_refused_with_what_can(image_tree):
    with pytest.raises(LoaderConfigError, match="operators=python"):
        DaliLoader(samples=image_tree(2), transform=SMALL, batch_size=2, seed=0, on_error="skip")


def test_sounds_that_may_be_left_out_run_with_python_operators(sounds):
    samples = sounds([4000] * 5)
    content = samples.path(3).read_bytes()
    samples.path(3).write_bytes(content[: len(content) // 2])
    with DaliLoader(samples=samples, transform=SpeechPipeline(), batch_size=2, seed=0, on_error="skip") as loader:
        assert "Python operators, for on_error=skip" in loader.notes[0]
        assert sorted(int(k) for batch in loader.epoch(0) for k in batch.ids) == [0, 1, 2, 4]


def test_a_pipeline_of_ones_own_runs_with_python_operators(image_tree):
    with DaliLoader(samples=image_tree(2), transform=TimedPipeline(0.001), batch_size=2, seed=0) as loader:
        assert "TimedPipeline" in loader.notes[0]
        assert sum(len(batch) for batch in loader.epoch(0)) == 2


def test_what_runs_where_is_said(volumes, sounds):
    segmentation = SegmentationPipeline(RandomCrop(16))
    with DaliLoader(samples=volumes(2), transform=segmentation, batch_size=2, seed=0) as loader:
        assert "Python operators run reading and decoding" in loader.notes[0]
        list(loader.epoch(0))
        assert loader.stats().details["random_crop_count"] == 2
    with DaliLoader(samples=sounds([4000]), transform=SpeechPipeline(), batch_size=2, seed=0) as loader:
        expected = "run decoding, Pad, SpecAugment, FilterBank, FrameSplicing, PermuteAudio and collation"
        assert expected in loader.notes[0]


def test_a_read_that_hangs_before_dali_has_the_sample_is_named_in_time(sounds):
    samples = sounds([4000] * 5)
    samples.path(3).unlink()
    os.mkfifo(samples.path(3))
    began = time.monotonic()
    with DaliLoader(samples=samples, transform=SpeechPipeline(), batch_size=2, seed=0, sample_timeout_s=0.3) as loader:
        assert loader.notes[0].startswith("DALI's operators run decoding")
        with pytest.raises(SampleTimeoutError, match=r"sample 3 \(.*3.flac\) .*read .*thread \d"):
            list(loader.epoch(0))
    assert time.monotonic() - began < 10
    # Whoever opens the other end lets the reading thread go.
    os.close(os.open(samples.path(3), os.O_WRONLY))
