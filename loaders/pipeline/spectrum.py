"""Short-time power spectra of speech, and the mel scale on which their frequencies are summed up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

_LINEAR_MEL_PER_HZ: Final = 3 / 200
_BREAK_HZ: Final = 1000.0
_LOG_STEP: Final = math.log(6.4) / 27
"""Slaney's mel scale (Auditory Toolbox, Interval Research report 1998-010): linear to 1 kHz, then 27 steps to 6.4 kHz.

The default scale of librosa and DALI, and with them MLPerf's RNN-T.
"""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """How a power spectrum is taken; by default as MLPerf's RNN-T does (baseline_v3-1023sp.yaml)."""

    sample_rate: int = 16_000
    window_s: float = 0.02
    hop_s: float = 0.01
    n_fft: int = 512
    """Points of a transform; windows are padded with zeros to it."""
    preemphasis: float = 0.97
    """What of every sample is subtracted from the next, which lifts high frequencies."""

    def __post_init__(self) -> None:
        if not 1 <= self.window <= self.n_fft:
            raise ValueError(
                f"spectrum.window_s={self.window_s}: expected 1 to n_fft={self.n_fft} samples, are {self.window}"
            )
        if self.hop < 1:
            raise ValueError(f"spectrum.hop_s={self.hop_s}: expected 1 sample or more, is {self.hop}")

    @property
    def window(self) -> int:
        """Length of a window in samples."""
        return round(self.window_s * self.sample_rate)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return round(self.hop_s * self.sample_rate)

    @property
    def bins(self) -> int:
        """Frequencies of a spectrum, evenly from 0 to half the sample rate."""
        return self.n_fft // 2 + 1

    def of(self, wave: torch.Tensor) -> torch.Tensor:
        """Return the power spectrum of a waveform, float32 of shape (bins, ceil(samples / hop)).

        Frame t is centred on sample t * hop, and silence lies beyond both ends.
        """
        # The silence is there before frequencies are lifted: padding that came earlier makes no difference then.
        silent = torch.nn.functional.pad(wave, (self.n_fft // 2 + 1, self.n_fft // 2))
        emphasised = silent[1:] - self.preemphasis * silent[:-1]
        # A frame more than needed comes of a whole number of hops: its centre is beyond the last sample.
        frames = -(-len(wave) // self.hop)
        transformed = torch.stft(
            emphasised, self.n_fft, self.hop, self.window, _hann(self.window), center=False, return_complex=True
        )[:, :frames]
        return transformed.real.square().add_(transformed.imag.square())


def mel_of_hz(hz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return frequencies in Hz on the mel scale."""
    values = np.asarray(hz, np.float64)
    above = np.log(np.maximum(values, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.minimum(values, _BREAK_HZ) * _LINEAR_MEL_PER_HZ + above


def hz_of_mel(mel: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return positions on the mel scale in Hz."""
    values, turn = np.asarray(mel, np.float64), _BREAK_HZ * _LINEAR_MEL_PER_HZ
    return np.minimum(values, turn) / _LINEAR_MEL_PER_HZ * np.exp(np.maximum(values - turn, 0.0) * _LOG_STEP)


@lru_cache(maxsize=8)
def mel_matrix(spectrum: Spectrum, channels: int) -> torch.Tensor:
    """Return the weights that sum a power spectrum up in mel channels, float32 of shape (channels, bins).

    Triangles whose corners lie evenly on the mel scale from 0 to half the sample rate, each with an area of 1 Hz
    (Slaney 1998). Raises ValueError when there are so many that one has no bin.
    """
    half = spectrum.sample_rate / 2
    corners = hz_of_mel(np.linspace(0.0, mel_of_hz(half), channels + 2))
    bins = np.linspace(0.0, half, spectrum.bins)
    rising = (bins - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - bins) / np.diff(corners)[1:, None]
    weights = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (corners[2:] - corners[:-2]))[:, None]
    if not weights.any(axis=1).all():
        raise ValueError(f"channels={channels}: a channel has no frequency of the {spectrum.bins}; take a larger n_fft")
    return torch.from_numpy(weights.astype(np.float32))


@lru_cache(maxsize=8)
def _hann(length: int) -> torch.Tensor:
    return torch.hann_window(length, periodic=False)
