"""The steps of speech, each as what Python works out for a sample and the DALI operators that do it.

Python goes through the steps with a tensor on torch's device "meta", which has a shape and no elements: so every
length is what the pipeline's own step makes of it.

In the graph time is the first dimension throughout, as it is in the end: neighbouring frames lie one behind the other
then, so FrameSplicing and PermuteAudio move nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import nvidia.dali.math as dali_math
import torch
from nvidia.dali import fn

from loaders.dali.plan import DataNode, NoOperatorsError
from loaders.pipeline import Item, Transform
from loaders.pipeline.audio import (
    MIN_DEVIATION,
    TINY,
    FilterBank,
    FrameSplicing,
    Pad,
    PermuteAudio,
    SpecAugment,
    positions,
)
from loaders.pipeline.spectrum import Spectrum
from loaders.pipeline.synthetic_load import HeavyStep, LightStep

FEED: Final = "feed"
"""Where an item's target keeps what the graph is fed of it, arrays by name."""


StepT = TypeVar("StepT", bound=Transform)


@dataclass(frozen=True)
class StepPart(Generic[StepT]):
    """A step, run half in Python and half in DALI; this one needs nothing of DALI."""

    step: StepT

    @property
    def name(self) -> str:
        """The step's name."""
        return self.step.name

    def __call__(self, item: Item) -> Item:
        """Return the item with the shape that its data have after the step; its feed gains the inputs of `graph`."""
        return self.step(item)

    def graph(self, data: DataNode, fed: Mapping[str, DataNode], device: str) -> DataNode:
        """Return data after the step."""
        return data


@dataclass(frozen=True)
class _PadPart(StepPart[Pad]):
    """Pad, at any place."""

    def __call__(self, item: Item) -> Item:
        item = self.step(item)
        item.target[FEED][self.name] = _one(item.data.shape[item.target["time"]])
        return item

    def graph(self, data: DataNode, fed: Mapping[str, DataNode], device: str) -> DataNode:
        return fn.pad(data, axes=(0,), shape=fed[self.name])


@dataclass(frozen=True)
class _SpecAugmentPart(StepPart[SpecAugment]):
    """SpecAugment, of a waveform or of its spectrum."""

    of_wave: bool

    def __call__(self, item: Item) -> Item:
        if self.of_wave:
            item = _with_frames(item, self.step.spectrum, self.name)
        frames, total = positions(item.target), item.data.shape[1]
        rows, columns = (mask.numpy() for mask in self.step.masks(item, frames))
        mask = np.zeros((total, len(rows)), np.bool_)
        mask[:frames] = rows[None] | columns[:, None]
        item.target[FEED] |= {
            f"{self.name} total": _one(total),
            f"{self.name} frames": _one(frames),
            f"{self.name} masked": mask,
            f"{self.name} kept": ~mask,
        }
        return item

    def graph(self, data: DataNode, fed: Mapping[str, DataNode], device: str) -> DataNode:
        power = _power(data, self.step.spectrum, fed, self.name) if self.of_wave else data
        masked, kept = (fed[f"{self.name} {what}"] for what in ("masked", "kept"))
        if device == "cuda":
            masked, kept = masked.gpu(), kept.gpu()
        logarithms = dali_math.log(_first_frames(power, fed[f"{self.name} frames"]) + TINY)
        usual = dali_math.exp(fn.reductions.mean(logarithms, axes=0, keep_dims=True))
        return power * kept + usual * masked


@dataclass(frozen=True)
class _FilterBankPart(StepPart[FilterBank]):
    """FilterBank, of a waveform or of its spectrum."""

    of_wave: bool

    def __call__(self, item: Item) -> Item:
        if self.of_wave:
            item = _with_frames(item, self.step.spectrum, self.name)
        total = item.data.shape[1]
        item.target[FEED] |= {f"{self.name} total": _one(total), f"{self.name} frames": _one(positions(item.target))}
        item.data = torch.empty(self.step.channels, total, device="meta")
        return item

    def graph(self, data: DataNode, fed: Mapping[str, DataNode], device: str) -> DataNode:
        power = _power(data, self.step.spectrum, fed, self.name) if self.of_wave else data
        speech = _first_frames(power, fed[f"{self.name} frames"])
        logarithms = _log_mel(speech, self.step.spectrum, self.step.channels)
        # From their first: a channel that hardly changes then loses little to rounding in the mean.
        changes = logarithms - _first_frames(logarithms, 1)
        mean = fn.reductions.mean(changes, axes=0, keep_dims=True)
        deviation = fn.reductions.std_dev(changes, mean, axes=0, keep_dims=True)
        features = (changes - mean) / (deviation + MIN_DEVIATION) * (deviation > MIN_DEVIATION)
        return fn.pad(features, axes=(0,), shape=fed[f"{self.name} total"])


@dataclass(frozen=True)
class _FrameSplicingPart(StepPart[FrameSplicing]):
    """FrameSplicing of features with this many channels."""

    channels: int

    def graph(self, data: DataNode, fed: Mapping[str, DataNode], device: str) -> DataNode:
        # With a minimum shape of 1, the padding is only as long as a whole multiple lacks.
        whole = fn.pad(data, axes=(0,), align=self.step.frames, shape=1)
        return fn.reshape(whole, shape=[-1, self.step.frames * self.channels])


def parts_of(steps: Sequence[Transform]) -> tuple[list[StepPart[Any]], list[Transform]]:
    """Return the steps that are put into the graph, and those that only pass time, which may stand before it.

    Raises NoOperatorsError for a step that there is no graph of, at its place.
    """
    if len({step.name for step in steps}) < len(steps):
        raise NoOperatorsError("two of its steps have the same name")
    parts: list[StepPart[Any]] = []
    waits: list[Transform] = []
    # What data are when a step comes to them: 0 channels are a waveform.
    channels, time = 0, 0
    for step in steps:
        kind = type(step)
        if kind in (LightStep, HeavyStep):
            waits.append(step)
        elif isinstance(step, Pad) and kind is Pad:
            parts.append(_PadPart(step))
        elif isinstance(step, SpecAugment) and kind is SpecAugment and _takes(step.spectrum, channels, time):
            parts.append(_SpecAugmentPart(step, of_wave=not channels))
            channels, time = step.spectrum.bins, 1
        elif isinstance(step, FilterBank) and kind is FilterBank and _takes(step.spectrum, channels, time):
            parts.append(_FilterBankPart(step, of_wave=not channels))
            channels, time = step.channels, 1
        elif isinstance(step, FrameSplicing) and kind is FrameSplicing and channels and time == 1:
            parts.append(_FrameSplicingPart(step, channels))
            channels *= step.frames
        elif isinstance(step, PermuteAudio) and kind is PermuteAudio and channels:
            parts.append(StepPart(step))
            time = 1 - time
        else:
            raise NoOperatorsError(f"there is no graph of DALI's operators for its step {step.name} at that place")
    if not channels or time != 0:
        raise NoOperatorsError("its steps do not end with features whose first dimension is time")
    return parts, waits


def _takes(spectrum: Spectrum, channels: int, time: int) -> bool:
    """Return whether a step takes such data: a waveform, whose spectrum it computes, or such a spectrum."""
    return (not channels and _has_operators(spectrum)) or (channels == spectrum.bins and time == 1)


def _with_frames(item: Item, spectrum: Spectrum, name: str) -> Item:
    """Return the item, a waveform until now, with the shape of its power spectrum."""
    samples = item.data.shape[0]
    item.target[FEED][f"{name} samples and one"] = _one(samples + 1)
    item.data = torch.empty(spectrum.bins, -(-samples // spectrum.hop), device="meta")
    item.target["step"], item.target["time"] = spectrum.hop, 1
    return item


def _power(wave: DataNode, spectrum: Spectrum, fed: Mapping[str, DataNode], name: str) -> DataNode:
    return _power_spectrum(wave, spectrum, fed[f"{name} samples and one"], fed[f"{name} total"])


def _one(number: int) -> npt.NDArray[np.int32]:
    """Return a number as DALI takes the shape of one dimension."""
    return np.array([number], np.int32)


def _has_operators(spectrum: Spectrum) -> bool:
    """Return whether DALI can compute such a spectrum: windows of even length, which both centre alike, of 2^n points,
    which its transform on the CPU needs.
    """
    return spectrum.window % 2 == 0 and spectrum.n_fft & (spectrum.n_fft - 1) == 0


def _power_spectrum(wave: DataNode, spectrum: Spectrum, samples_and_one: DataNode, frames: DataNode) -> DataNode:
    """Return what `Spectrum.of` does of a waveform, float32 of shape (frames, bins).

    `samples_and_one` and `frames`, int32 of shape (1,) in host memory, are the waveform's length and 1, and
    ceil(length / hop).
    """
    # The silence beyond the end is lifted too: what follows a last sample y is -0.97 y.
    longer = fn.pad(wave, axes=(0,), shape=samples_and_one)
    power = fn.spectrogram(
        fn.preemphasis_filter(longer, preemph_coeff=spectrum.preemphasis, border="zero"),
        nfft=spectrum.n_fft,
        window_length=spectrum.window,
        window_step=spectrum.hop,
        # DALI's own is periodic.
        window_fn=torch.hann_window(spectrum.window, periodic=False).tolist(),
        center_windows=True,
        reflect_padding=False,
        power=2,
        layout="tf",
    )
    # A frame more than needed comes of a whole number of hops.
    return _first_frames(power, frames)


def _log_mel(power: DataNode, spectrum: Spectrum, channels: int) -> DataNode:
    """Return the logarithms of mel channels as FilterBank takes them, float32 of shape (frames, channels)."""
    sums = fn.mel_filter_bank(
        fn.reshape(power, layout="tf"),
        nfilter=channels,
        sample_rate=float(spectrum.sample_rate),
        mel_formula="slaney",
        normalize=True,
    )
    return dali_math.log(sums + TINY)


def _first_frames(spectrum: DataNode, frames: DataNode | int) -> DataNode:
    """Return as many frames of (T, channels); `frames` is a number, or int32 of shape (1,) in host memory."""
    return fn.slice(spectrum, start=(0,), shape=frames, axes=(0,))
