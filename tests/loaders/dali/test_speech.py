"""Sounds through DALI's operators become the features that the pipeline makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from loaders import DaliLoader, LoaderConfigError, SampleError
from loaders.dali.speech import MAX_DIFFERENCE
from loaders.pipeline.audio import FilterBank, FrameSplicing, Pad, PermuteAudio, SpecAugment
from loaders.pipeline.spectrum import Spectrum
from loaders.pipeline.speech import SpeechPipeline
from loaders.pipeline.synthetic_load import HeavyStep, LightStep

# One sample, less than a hop, whole multiples of a hop and of Pad's, one more than these.
LENGTHS = [1, 100, 160, 161, 3200, 7680, 7681, 4321, 9000, 12_345, 320, 15_361, 6000]
WIDE = Spectrum(window_s=0.032, preemphasis=0.9)

ORDERS = {
    "table 1": (Pad(), SpecAugment(), FilterBank(), FrameSplicing(), PermuteAudio()),
    "padded last": (SpecAugment(), FilterBank(), FrameSplicing(), PermuteAudio(), Pad()),
    "padded in between": (
        SpecAugment(),
        Pad(),
        FilterBank(),
        Pad(0.5, name="Pad again"),
        FrameSplicing(),
        PermuteAudio(),
    ),
    "not padded": (FilterBank(), FrameSplicing(2), PermuteAudio()),
    "a spectrum alone": (Pad(), SpecAugment(time_masks=2), PermuteAudio()),
    "another spectrum": (FilterBank(40, WIDE), PermuteAudio()),
    "with waits": (Pad(), LightStep(0.001), SpecAugment(), HeavyStep(0.002), FilterBank(), PermuteAudio()),
}
NONE = {
    "windows of an odd length": (FilterBank(20, Spectrum(sample_rate=8_050)), PermuteAudio()),
    "spliced too late": (FilterBank(), PermuteAudio(), FrameSplicing()),
}


@pytest.mark.parametrize("steps", ORDERS.values(), ids=ORDERS)
def test_features_are_those_of_the_pipeline_in_every_order(sounds, through, steps):
    for batch, expected in through(sounds(LENGTHS), SpeechPipeline(steps)):
        assert batch.data.shape == expected.data.shape and batch.data.dtype == torch.float32
        # Powers without a logarithm have any size.
        scale = expected.data.abs().max() if FilterBank not in map(type, steps) else 1.0
        assert (batch.data - expected.data).abs().max() / scale < MAX_DIFFERENCE
        assert torch.equal(batch.labels, expected.labels)
        assert batch.extra.keys() == expected.extra.keys() == {"lengths", "label_lengths"}
        assert all(torch.equal(batch.extra[name], expected.extra[name]) for name in batch.extra)


@pytest.mark.parametrize("steps", NONE.values(), ids=NONE)
def test_an_order_or_a_spectrum_that_dali_has_no_operators_for_runs_in_python(sounds, steps):
    with DaliLoader(samples=sounds([4000]), transform=SpeechPipeline(steps), batch_size=4, seed=0) as loader:
        assert loader.notes[0].startswith("Python operators, ")


@pytest.mark.parametrize("operators", ["native", "python"])
def test_steps_that_only_take_time_take_a_share_of_it_and_the_notes_say_so(sounds, operators):
    waiting = SpeechPipeline((Pad(), LightStep(0.4), FilterBank(), PermuteAudio(), HeavyStep(0.5, share=1.0)))
    common = {"samples": sounds([4000]), "transform": waiting, "batch_size": 4, "seed": 0, "operators": operators}
    with DaliLoader(timed_step_scale=0.1, **common) as loader:
        assert "LightStep and HeavyStep take 0.1 times the time" in loader.notes[-1]
        list(loader.epoch(0))
        figures = loader.stats().details
    assert 0.04 <= figures["light_step_mean_s"] < 0.4
    assert 0.05 <= figures["heavy_step_mean_s"] < 0.5
    with DaliLoader(**common) as loader:
        assert len(loader.notes) == 1


@pytest.mark.parametrize("scale", [0, -1, math.nan, "0.1"])
def test_a_scale_that_is_no_factor_is_refused_by_name(sounds, scale):
    with pytest.raises(LoaderConfigError, match="timed_step_scale="):
        DaliLoader(samples=sounds([4000]), transform=SpeechPipeline(), batch_size=1, seed=0, timed_step_scale=scale)


def test_a_sound_that_is_damaged_in_its_middle_is_named(sounds):
    samples = sounds([40_000] * 9)
    content = bytearray(samples.path(6).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    samples.path(6).write_bytes(content)
    with (
        DaliLoader(samples=samples, transform=SpeechPipeline(), batch_size=4, seed=0) as loader,
        pytest.raises(SampleError, match=r"sample 6 \(.*6.flac\) "),
    ):
        list(loader.epoch(0))


def test_a_sound_of_another_rate_is_named_before_dali_has_it(sounds):
    with (
        DaliLoader(
            samples=sounds([4000]), transform=replace(SpeechPipeline(), sample_rate=8000), batch_size=4, seed=0
        ) as loader,
        pytest.raises(SampleError, match=r"16000 .*8000"),
    ):
        list(loader.epoch(0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("steps", ORDERS.values(), ids=ORDERS)
def test_the_gpu_makes_the_same_features(sounds, through, steps):
    for batch, expected in through(sounds(LENGTHS), SpeechPipeline(steps), device="cuda"):
        scale = expected.data.abs().max() if FilterBank not in map(type, steps) else 1.0
        assert batch.data.is_cuda and batch.labels.is_cuda
        assert (batch.data.cpu() - expected.data).abs().max() / scale < MAX_DIFFERENCE
