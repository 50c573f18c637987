"""Transforms of speech between waveform and features, as the MinatoLoader paper names them (table 1).

An item's data is a waveform at first, float32 of shape (samples,), then a spectrum or features of shape
(channels, frames), and after PermuteAudio features of shape (frames, channels). Its target has `samples`, the
waveform's length before any padding, `step`, how many samples one position in time stands for, and `time`, the
dimension of time; so `ceil(samples / step)` positions are speech, whatever was padded and wherever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import torch

from loaders.pipeline import Item, Target
from loaders.pipeline.spectrum import Spectrum, mel_matrix, mel_of_hz

TINY: Final = 1e-20
"""Added to powers before their logarithm is taken, as MLPerf's RNN-T does (features.py)."""
MIN_DEVIATION: Final = 1e-5
"""Added to a channel's deviation, which is MLPerf's number (features.py).

A channel whose deviation is no larger has no information: it is masked, or silent, and differs from frame to frame by
rounding alone. It becomes 0, because the division would make the rounding large.
"""


def positions(target: Target) -> int:
    """Return how many positions in time of an item's data are speech, and not padding."""
    return -(-int(target["samples"]) // int(target["step"]))


@dataclass(frozen=True, slots=True)
class Pad:
    """Silence after the speech, up to a whole multiple of a duration.

    The paper does not say to what samples are padded; batches are padded to their longest by collation in any case.
    May stand anywhere in a pipeline: after FilterBank it pads with what silence has become by then, zeros.
    """

    multiple_s: float = 0.48
    """Seconds; of the default, every position that FrameSplicing makes is whole."""
    sample_rate: int = 16_000
    name: str = "Pad"
    commutes_with: ClassVar = frozenset(
        {"SpecAugment", "FilterBank", "FrameSplicing", "PermuteAudio", "LightStep", "HeavyStep"}
    )

    def __post_init__(self) -> None:
        if not self.multiple_s * self.sample_rate >= 1:
            raise ValueError(f"Pad.multiple_s={self.multiple_s}: expected 1 sample of 1/{self.sample_rate} s or more")

    def __call__(self, item: Item) -> Item:
        """Return the item with data padded at the end of its time, to what the waveform would be padded to."""
        multiple = round(self.multiple_s * self.sample_rate)
        samples = -(-item.target["samples"] // multiple) * multiple
        time = item.target["time"]
        missing = -(-samples // item.target["step"]) - item.data.shape[time]
        if missing > 0:
            # Counted from the last dimension, a front and a back each.
            widths = [0, 0] * (item.data.ndim - 1 - time) + [0, missing]
            item.data = torch.nn.functional.pad(item.data, widths)
        return item


@dataclass(frozen=True, slots=True)
class SpecAugment:
    """Masks in time and frequency (Park et al., Interspeech 2019), without time warping.

    Table 1 of the MinatoLoader paper has it before FilterBank, where there are no features yet: so here it takes the
    power spectrum of the padded waveform, masks that, and hands it on to FilterBank, which takes either. Masks in
    frequency are drawn on the mel scale in units of one of `channels` parts, and masks in time within the speech
    alone. A masked value becomes the geometric mean over time of its frequency: the zeros of Park et al. are the same,
    who mask logarithms from which the mean is subtracted. Numbers and widths are those of MLPerf's RNN-T
    (baseline_v3-1023sp.yaml).
    """

    frequency_masks: int = 2
    max_channels: int = 20
    """Width of a mask in frequency: 0 to this, each as likely."""
    time_masks: int = 10
    max_time: float = 0.03
    """Width of a mask in time, as a share of the speech: 0 to this, each as likely."""
    channels: int = 80
    spectrum: Spectrum = field(default_factory=Spectrum)
    name: str = "SpecAugment"

    def __post_init__(self) -> None:
        for key, value in (("frequency_masks", self.frequency_masks), ("time_masks", self.time_masks)):
            if value < 0:
                raise ValueError(f"SpecAugment.{key}={value}: expected 0 or more")
        if not 0 <= self.max_channels <= self.channels:
            raise ValueError(f"SpecAugment.max_channels={self.max_channels}: expected 0 to {self.channels}")
        if not 0 <= self.max_time <= 1:
            raise ValueError(f"SpecAugment.max_time={self.max_time}: expected a share, 0 to 1")

    def __call__(self, item: Item) -> Item:
        """Return the item with its masked power spectrum, float32 of shape (bins, frames)."""
        item = _with_spectrum(item, self.spectrum)
        power, frames = item.data, positions(item.target)
        rows, columns = self.masks(item, frames)
        mask = rows[:, None] | columns[None, :]
        speech = power[:, :frames]
        usual = (speech + TINY).log_().mean(dim=1, keepdim=True).exp_()
        power[:, :frames] = torch.where(mask, usual, speech)
        return item

    def masks(self, item: Item, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which bins and which frames are masked, bool of shapes (bins,) and (frames,)."""
        rng = item.generator(self.name)
        half = self.spectrum.sample_rate / 2
        channel = mel_of_hz(np.linspace(0.0, half, self.spectrum.bins)) / mel_of_hz(half) * self.channels
        rows, columns = np.zeros(self.spectrum.bins, np.bool_), np.zeros(frames, np.bool_)
        for _ in range(self.frequency_masks):
            width = int(rng.integers(0, self.max_channels + 1))
            first = int(rng.integers(0, max(1, self.channels - width)))
            rows |= (channel >= first) & (channel < first + width)
        longest = round(self.max_time * frames)
        for _ in range(self.time_masks):
            width = int(rng.integers(0, longest + 1))
            first = int(rng.integers(0, max(1, frames - width)))
            columns[first : first + width] = True
        return torch.from_numpy(rows), torch.from_numpy(columns)


@dataclass(frozen=True, slots=True)
class FilterBank:
    """Logarithms of mel channels, each with mean 0 and deviation 1 over the speech; padding becomes 0.

    A channel that never changes, such as one that is masked throughout, becomes 0 too.

    Takes a waveform or its power spectrum; data become float32 of shape (channels, frames). 80 channels of windows of
    20 ms, one every 10 ms, normalised for each sample and channel, are those of MLPerf's RNN-T
    (baseline_v3-1023sp.yaml).
    """

    channels: int = 80
    spectrum: Spectrum = field(default_factory=Spectrum)
    name: str = "FilterBank"

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise ValueError(f"FilterBank.channels={self.channels}: expected 1 or more")
        mel_matrix(self.spectrum, self.channels)

    def __call__(self, item: Item) -> Item:
        """Return the item with its features, float32 of shape (channels, frames)."""
        item = _with_spectrum(item, self.spectrum)
        features = (mel_matrix(self.spectrum, self.channels) @ item.data).add_(TINY).log_()
        frames = positions(item.target)
        deviation, mean = torch.std_mean(features[:, :frames], dim=1, correction=0, keepdim=True)
        features.sub_(mean).div_(torch.where(deviation > MIN_DEVIATION, deviation + MIN_DEVIATION, torch.inf))
        features[:, frames:] = 0.0
        item.data = features
        return item


@dataclass(frozen=True, slots=True)
class FrameSplicing:
    """Joins every `frames` neighbouring frames into one of as many times the channels.

    3 frames are those of MLPerf's RNN-T (baseline_v3-1023sp.yaml: frame_stacking and frame_subsampling).
    """

    frames: int = 3
    name: str = "FrameSplicing"

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"FrameSplicing.frames={self.frames}: expected 1 or more")

    def __call__(self, item: Item) -> Item:
        """Return the item with features of shape (frames * channels, ceil(T / frames)), what is missing being 0."""
        channels, frames = item.data.shape
        missing = -frames % self.frames
        padded = torch.nn.functional.pad(item.data, (0, missing)) if missing else item.data
        spliced = padded.view(channels, -1, self.frames).permute(2, 0, 1)
        item.data = spliced.reshape(self.frames * channels, -1)
        item.target["step"] *= self.frames
        return item


@dataclass(frozen=True, slots=True)
class PermuteAudio:
    """Puts time before channels, as recurrent networks read."""

    name: str = "PermuteAudio"

    def __call__(self, item: Item) -> Item:
        """Return the item with features of shape (T, channels)."""
        item.data = item.data.transpose(0, 1).contiguous()
        item.target["time"] = 1 - item.target["time"]
        return item


def _with_spectrum(item: Item, spectrum: Spectrum) -> Item:
    """Return the item with its power spectrum, which is taken now if it is a waveform still."""
    if item.data.ndim == 1:
        item.data = spectrum.of(item.data)
        item.target["step"], item.target["time"] = spectrum.hop, 1
    return item
