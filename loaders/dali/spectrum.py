"""Power spectra and mel channels by DALI's operators, with the arguments that make them what the pipeline takes."""

from __future__ import annotations

import nvidia.dali.math as dali_math
import torch
from nvidia.dali import fn

from loaders.dali.plan import DataNode
from loaders.pipelines.audio import TINY
from loaders.pipelines.spectrum import Spectrum

__all__ = ["first_frames", "has_operators", "log_mel", "power_spectrum"]


def has_operators(spectrum: Spectrum) -> bool:
    """Tell whether DALI can take such a spectrum: windows of even length, so that both centre them alike, of 2^n
    points, which its transform on the CPU asks for.
    """
    return spectrum.window % 2 == 0 and spectrum.n_fft & (spectrum.n_fft - 1) == 0


def power_spectrum(wave: DataNode, spectrum: Spectrum, samples_and_one: DataNode, frames: DataNode) -> DataNode:
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
    return first_frames(power, frames)


def log_mel(power: DataNode, spectrum: Spectrum, channels: int) -> DataNode:
    """Return the logarithms of mel channels as FilterBank takes them, float32 of shape (frames, channels)."""
    sums = fn.mel_filter_bank(
        fn.reshape(power, layout="tf"),
        nfilter=channels,
        sample_rate=float(spectrum.sample_rate),
        mel_formula="slaney",
        normalize=True,
    )
    return dali_math.log(sums + TINY)


def first_frames(spectrum: DataNode, frames: DataNode | int) -> DataNode:
    """Return as many frames of (T, channels); `frames` is a number, or int32 of shape (1,) in host memory."""
    return fn.slice(spectrum, start=(0,), shape=frames, axes=(0,))
