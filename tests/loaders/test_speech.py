from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from loaders import Samples
from loaders.errors import SampleError
from loaders.pipeline import Item, UndecodableError, load_item
from loaders.pipeline.audio import FilterBank, FrameSplicing, Pad, PermuteAudio, SpecAugment, positions
from loaders.pipeline.spectrum import Spectrum, hz_of_mel, mel_matrix, mel_of_hz
from loaders.pipeline.speech import BLANK, CHARACTERS, FEATURES, SYMBOLS, SpeechPipeline, label_of
from loaders.pipeline.synthetic_load import HeavyStep, LightStep, pass_time
from tests.loaders.small_data import RATE, WORDS, flac, make_sounds, make_wave


def text_of(labels):
    """Return the transcript of labels, leaving out blanks."""
    return "".join(CHARACTERS[label - 1] for label in labels.tolist() if label != BLANK)


def wave(samples: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(make_wave(samples, seed))


def item(samples: int, sample_id: int = 0, epoch: int = 0) -> Item:
    target = {"labels": label_of("A"), "samples": samples, "step": 1, "time": 0}
    return Item(sample_id, 0, epoch, wave(samples, sample_id), target)


def through(given: Item, *steps: Any) -> Item:
    for step in steps:
        given = step(given)
    return given


def encoded(data: torch.Tensor, rate: int = RATE) -> bytes:
    return flac(data.numpy(), rate)


@pytest.fixture
def speech(tmp_path: Path) -> Callable[[int], Samples]:
    """Makes FLAC files of noise, 0.1 to 0.5 s long, with transcripts."""
    return lambda count: make_sounds(tmp_path, [1600 + 1237 * k % 6400 for k in range(count)])


def test_the_mel_scale_is_linear_to_1_khz_and_then_logarithmic() -> None:
    # 1 kHz is 15 mel, and 27 steps further lies 6.4 kHz (Slaney 1998).
    assert mel_of_hz([0, 500, 1000, 6400]) == pytest.approx([0, 7.5, 15, 42])
    hz = np.linspace(0, 8000, 33)
    assert hz_of_mel(mel_of_hz(hz)) == pytest.approx(hz)


def direct_features(data: np.ndarray) -> np.ndarray:
    """Return what FilterBank is to make of a waveform, by the formulas and one number at a time."""
    emphasised = np.concatenate((data[:1], data[1:] - 0.97 * data[:-1], -0.97 * data[-1:])).astype(np.float64)
    silent = np.concatenate((np.zeros(256), emphasised, np.zeros(512)))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 319)
    bins = np.arange(257)
    turns = np.exp(-2j * np.pi * np.outer(np.arange(320), bins) / 512)
    corners = []
    top = 15 + 27 * math.log(8000 / 1000) / math.log(6.4)
    for k in range(82):
        mel = top * k / 81
        corners.append(mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27))
    rows = []
    for frame in range(math.ceil(len(data) / 160)):
        # The window lies in the middle of the 512 points around its centre.
        power = np.abs((silent[frame * 160 + 96 : frame * 160 + 96 + 320] * window) @ turns) ** 2
        row = []
        for low, middle, high in zip(corners, corners[1:], corners[2:], strict=False):
            total = 0.0
            for k in bins:
                hz = k * 8000 / 256
                if low < hz <= middle:
                    total += power[k] * (hz - low) / (middle - low) * 2 / (high - low)
                elif middle < hz < high:
                    total += power[k] * (high - hz) / (high - middle) * 2 / (high - low)
            row.append(math.log(total + 1e-20))
        rows.append(row)
    logs = np.array(rows).T
    return (logs - logs.mean(axis=1, keepdims=True)) / (logs.std(axis=1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("samples", [1600, 2561, 399])
def test_the_filter_bank_is_what_its_formulas_say(samples: int) -> None:
    made = FilterBank()(item(samples)).data
    expected = direct_features(wave(samples).numpy())
    assert made.shape == expected.shape == (80, math.ceil(samples / 160))
    assert made.numpy() == pytest.approx(expected, abs=2e-3)


def test_every_mel_channel_has_an_area_of_one_hertz_and_too_many_are_refused() -> None:
    fine = mel_matrix(Spectrum(n_fft=16_384), 80)
    assert fine.sum(dim=1).numpy() * RATE / 16_384 == pytest.approx(np.ones(80), rel=0.02)
    with pytest.raises(ValueError, match="channels=400"):
        FilterBank(channels=400)


def test_padding_may_come_first_or_last_and_changes_no_feature() -> None:
    first = through(item(4321), Pad(), FilterBank(), FrameSplicing(), PermuteAudio())
    last = through(item(4321), FilterBank(), FrameSplicing(), PermuteAudio(), Pad())
    without = through(item(4321), FilterBank(), FrameSplicing(), PermuteAudio())
    assert first.data.shape == last.data.shape == (16, 240)
    assert torch.allclose(first.data, last.data, atol=1e-5)
    assert positions(first.target) == positions(without.target) == len(without.data) == 10
    assert torch.allclose(first.data[:10], without.data, atol=1e-5)
    assert not first.data[10:].any()


def test_a_whole_multiple_is_not_padded() -> None:
    assert len(Pad(0.48)(item(7680)).data) == 7680
    assert len(Pad(0.48)(item(7681)).data) == 15_360


def test_what_is_masked_becomes_the_mean_and_the_rest_stays() -> None:
    plain = FilterBank()(item(16_000)).data
    masked = through(item(16_000), SpecAugment(frequency_masks=0, time_masks=3, max_time=0.2), FilterBank()).data
    frames = [t for t in range(100) if masked[:, t].std() < 0.25]  # all channels at their mean
    assert 3 <= len(frames) <= 60
    kept = [t for t in range(100) if t not in frames]
    # Means and deviations are of what is left, so the rest is the same but for a factor and an offset a channel.
    one, other = plain[:, kept], masked[:, kept]
    both = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(one, other, strict=True)])
    assert both.min() > 0.9999


def test_a_channel_that_changes_by_rounding_alone_becomes_zero() -> None:
    # As matrix products leave a channel that is masked, for some lengths and on some processors.
    power = torch.rand(257, 1) * (1 + 1e-6 * (torch.arange(37) % 3))
    power[100:] = torch.rand(157, 37)
    features = FilterBank()(Item(0, 0, 0, power, {"samples": 37 * 160, "step": 160, "time": 1})).data
    masked = mel_matrix(Spectrum(), 80)[:, 100:].sum(dim=1) == 0
    assert masked.sum() > 20 and not features[masked].any()
    assert features[~masked].std(dim=1, correction=0).min() > 0.99


def test_masks_in_frequency_are_as_wide_on_the_mel_scale_as_told() -> None:
    widths = []
    for epoch in range(40):
        power = SpecAugment(frequency_masks=1, time_masks=0)(item(8000, epoch=epoch)).data
        constant = (power.std(dim=1) / power.mean(dim=1) < 1e-3).nonzero()[:, 0]
        if len(constant):
            assert constant.max() - constant.min() == len(constant) - 1
            edges = mel_of_hz((constant[[0, -1]].numpy() + np.array([-0.5, 0.5])) * RATE / 512)
            widths.append((edges[1] - edges[0]) / mel_of_hz(8000) * 80)
    assert max(widths) < 21.5
    assert max(widths) > 15
    assert len({round(width) for width in widths}) > 8


def test_masks_depend_on_seed_epoch_and_sample_alone() -> None:
    mask = SpecAugment()
    assert torch.equal(mask(item(8000)).data, mask(item(8000)).data)
    assert not torch.equal(mask(item(8000)).data, mask(item(8000, epoch=1)).data)
    assert torch.equal(mask(item(8000)).data, pickle.loads(pickle.dumps(mask))(item(8000)).data)


def test_without_masks_features_are_those_of_the_waveform() -> None:
    none = SpecAugment(frequency_masks=0, time_masks=0)
    assert torch.equal(through(item(8000), none, FilterBank()).data, FilterBank()(item(8000)).data)


def test_spliced_frames_hold_their_neighbours_in_order() -> None:
    spliced = through(item(1600), FilterBank(), FrameSplicing(3), PermuteAudio())
    plain = FilterBank()(item(1600)).data
    assert spliced.data.shape == (4, 240)
    assert torch.equal(spliced.data[1], torch.cat((plain[:, 3], plain[:, 4], plain[:, 5])))
    assert torch.equal(spliced.data[3, :80], plain[:, 9])
    assert not spliced.data[3, 80:].any()
    assert positions(spliced.target) == 4


def test_the_steps_are_those_of_table_1_in_its_order() -> None:
    steps = (*FEATURES, LightStep(), HeavyStep())
    assert [step.name for step in steps] == [
        "Pad", "SpecAugment", "FilterBank", "FrameSplicing", "PermuteAudio", "LightStep", "HeavyStep",
    ]  # fmt: skip


def test_every_fifth_sample_is_heavy() -> None:
    step = HeavyStep(3.0, time_scale=0.5)
    heavy = [k for k in range(1000) if step.is_heavy(k)]
    assert heavy == list(range(4, 1000, 5))
    assert {step.seconds_for(k) for k in range(10)} == {0.0, 1.5}


@pytest.mark.parametrize("share", [0, 0.1, 0.25, 0.29, 1 / 3, 0.5, 0.7, 0.75, 0.9, 1])
def test_any_share_of_the_samples_can_be_heavy(share: float) -> None:
    heavy = [HeavyStep(share=share).is_heavy(k) for k in range(600)]
    for count in (100, 300, 600):
        assert sum(heavy[:count]) == math.floor(round(count * share, 6))


def test_sleeping_takes_no_core_and_spinning_takes_it_all() -> None:
    began, used = time.monotonic(), time.thread_time()
    pass_time(0.02, "sleep")
    assert time.monotonic() - began >= 0.02
    assert time.thread_time() - used < 0.01
    used = time.thread_time()
    pass_time(0.02, "spin")
    assert time.thread_time() - used >= 0.02


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: LightStep(-1), "LightStep.seconds=-1"),
        (lambda: HeavyStep(math.nan), "HeavyStep.seconds=nan"),
        (lambda: HeavyStep(share=1.5), "HeavyStep.share=1.5"),
        (lambda: LightStep(passing="wait"), "LightStep.passing='wait'"),  # type: ignore[arg-type]
        (lambda: HeavyStep(time_scale=-2), "HeavyStep.time_scale=-2"),
        (lambda: Pad(0), "Pad.multiple_s=0"),
        (lambda: SpecAugment(max_channels=81), "SpecAugment.max_channels=81"),
        (lambda: SpecAugment(max_time=1.1), "SpecAugment.max_time=1.1"),
        (lambda: FrameSplicing(0), "FrameSplicing.frames=0"),
        (lambda: Spectrum(window_s=0.05), "spectrum.window_s=0.05"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(make: Callable[[], object], key: str) -> None:
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        make()


def test_characters_have_labels_beside_the_blank() -> None:
    assert SYMBOLS == 29
    assert BLANK not in label_of(CHARACTERS)
    assert label_of(CHARACTERS).tolist() == list(range(1, SYMBOLS))
    assert text_of(torch.nn.functional.pad(label_of("DON'T GO"), (0, 3))) == "DON'T GO"
    with pytest.raises(UndecodableError, match="'é' in 'CAFé'"):
        label_of("CAFé")


def test_a_batch_holds_padded_features_and_labels_with_their_lengths(speech: Callable[[int], Samples]) -> None:
    samples, pipeline = speech(5), SpeechPipeline()
    items = [load_item(pipeline, samples, k, seed=0, epoch=0) for k in range(5)]
    data, labels, extra = pipeline.collate(items)
    assert data.dtype == torch.float32
    assert data.shape == (5, max(len(each.data) for each in items), 240)
    assert labels.shape == (5, 8)
    assert (labels.dtype, extra["lengths"].dtype, extra["label_lengths"].dtype) == (torch.int64,) * 3
    durations = samples.columns["duration_s"].to_pylist()
    assert extra["lengths"].tolist() == [math.ceil(round(s * RATE) / 480) for s in durations]
    for k in range(5):
        assert not data[k, extra["lengths"][k] :].any()
        assert data[k, : extra["lengths"][k]].any()
        assert text_of(labels[k, : extra["label_lengths"][k]]) == WORDS[k]
        assert not labels[k, extra["label_lengths"][k] :].any()


def broken_in_the_middle(data: torch.Tensor) -> bytes:
    good = bytearray(encoded(data))
    good[len(good) // 2 : len(good) // 2 + 64] = bytes(64)
    return bytes(good)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"", " 0 bytes"),
        (lambda: bytes(500), " 500 bytes"),
        (lambda: encoded(wave(8000))[:3000], "not a whole sound"),
        (lambda: broken_in_the_middle(wave(40_000)), "not a whole sound"),
        (lambda: encoded(wave(8000).view(-1, 2)), "2 channels, expected 1"),
        (lambda: encoded(wave(8000), 8000), "8000 .*16000"),
    ],
)
def test_a_sound_that_cannot_be_taken_is_named(
    make: Callable[[], bytes], reason: str, speech: Callable[[int], Samples]
) -> None:
    samples = speech(3)
    samples.path(1).write_bytes(make())
    with pytest.raises(SampleError, match=rf"sample 1 \({samples.path(1)}\) .*{reason}"):
        load_item(SpeechPipeline(), samples, 1, seed=0, epoch=0)


@pytest.mark.parametrize(("text", "reason"), [("", "transcript"), ("naive", "'n'")])
def test_a_transcript_that_cannot_be_taken_is_named(text: str, reason: str, speech: Callable[[int], Samples]) -> None:
    samples = speech(3)
    samples = replace(samples, columns={"transcript": pa.array(["A", text, "B"])})
    with pytest.raises(SampleError, match=rf"sample 1 \(.*1\.flac\) .*{reason}"):
        load_item(SpeechPipeline(), samples, 1, seed=0, epoch=0)


def test_a_dataset_without_transcripts_is_told_so(speech: Callable[[int], Samples]) -> None:
    samples = replace(speech(1), columns={})
    with pytest.raises(SampleError, match="transcript"):
        load_item(SpeechPipeline(), samples, 0, seed=0, epoch=0)
