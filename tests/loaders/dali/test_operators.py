"""Whose operators run a pipeline is said, can be chosen, and changes nothing of what is promised."""

from __future__ import annotations

import os
import time

import pytest

from loaders import DaliLoader, ImageTransform, SampleTimeoutError
from loaders.pipeline.crop3d import RandomCrop
from loaders.pipeline.segmentation import SegmentationPipeline
from loaders.pipeline.speech import SpeechPipeline


def test_sounds_that_may_be_left_out_run_with_python_operators(sounds):
    samples = sounds([4000] * 5)
    content = samples.path(3).read_bytes()
    samples.path(3).write_bytes(content[: len(content) // 2])
    with DaliLoader(samples=samples, transform=SpeechPipeline(), batch_size=2, seed=0, on_error="skip") as loader:
        assert "Python operators, for on_error=skip" in loader.notes[0]
        assert sorted(int(k) for batch in loader.epoch(0) for k in batch.ids) == [0, 1, 2, 4]


def test_what_runs_where_is_said(volumes, sounds, image_tree):
    with DaliLoader(
        samples=image_tree(2), transform=ImageTransform(size=32), batch_size=2, seed=0, operators="python"
    ) as loader:
        assert loader.notes == (
            "Python operators, for operators=python asks for them: threads run reading, decoding, RandomResizedCrop, "
            "RandomHorizontalFlip, Normalize, collation and hand batches to DALI's external_source",
        )
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
