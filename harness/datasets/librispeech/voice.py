"""A speaker: the sounds of the alphabet at one pitch and length of throat, and utterances put together from them."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from harness.datasets.librispeech.plan import Plan
from harness.datasets.librispeech.sounds import SOUNDS, Sound

__all__ = ["PAUSE_COST", "SAMPLE_RATE", "SPEECH_BYTES_PER_S", "Voice", "encode"]

SAMPLE_RATE: Final = 16_000
"""Samples per second of LibriSpeech (Panayotov et al., ICASSP 2015)."""
SPEECH_BYTES_PER_S: Final = 21_000.0
"""Of FLAC, while somebody speaks; with pauses it makes the 16.7 kB/s of LibriSpeech: about 60 GB in 1 000 hours."""
PAUSE_COST: Final = 0.35
"""Bytes of a second of silence, as a share of those of a second of speech."""

_TRIAL_S: Final = 8.0
"""Speech by which the level of a voice is set, in seconds."""
_LONGEST: Final = int(0.16 * SAMPLE_RATE)
"""Samples of a stored sound: more than any letter lasts."""
_PITCHES: Final = (0.88, 1.0, 1.13)
"""Variants of every sound, as factors on the speaker's pitch."""
_BANDWIDTHS_HZ: Final = (60.0, 90.0, 120.0)
_FADE: Final = 96
"""Samples over which a sound begins and ends."""
_BREATH: Final = 0.02
"""Noise within voiced sounds, as a share of their level."""
_FLOOR: Final = 0.0012
"""Noise of the room, as a share of the level of vowels."""
_LEVEL: Final = 2000.0
"""First guess of the level of vowels, in units of a 16-bit sample."""
_NOISE: Final = 1 << 16

_Wave = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Voice:
    """The sounds of one speaker."""

    sounds: dict[str, list[_Wave]]
    """By letter, one for every pitch, float32 of shape (_LONGEST,)."""
    room: _Wave
    """Noise of the room, float32."""
    level: float
    """Factor from sounds to 16-bit samples."""

    @classmethod
    def make(cls, rng: np.random.Generator) -> Voice:
        """Draw a speaker, whose level is such that speech takes SPEECH_BYTES_PER_S."""
        pitch_hz = float(np.exp(rng.uniform(math.log(85.0), math.log(240.0))))
        # Shorter throats go with higher voices: the formants of women lie some 15 % above those of men.
        throat = 1.0 + 0.15 * math.log(pitch_hz / 110.0) / math.log(2.0) + float(rng.normal(0.0, 0.03))
        partials = [_partials(pitch_hz * factor, rng) for factor in _PITCHES]
        sounds = {letter: [_sound(sound, throat, *each, rng) for each in partials] for letter, sound in SOUNDS.items()}
        room = (rng.standard_normal(_NOISE, np.float32) * _FLOOR).astype(np.float32)
        voice = cls(sounds, room, _LEVEL)
        trial = Plan.draw(rng, _TRIAL_S, PAUSE_COST, 1.0)
        # One bit more in every sample for each doubling of the level: what is compressed away does not grow with it.
        for _ in range(2):
            missing = SPEECH_BYTES_PER_S * _TRIAL_S - len(encode(voice.speak(trial, rng)))
            voice = cls(sounds, room, voice.level * 2.0 ** (missing * 8 / SAMPLE_RATE / trial.duration_s))
        return voice

    def speak(self, plan: Plan, rng: np.random.Generator) -> npt.NDArray[np.int16]:
        """Return the utterance of a plan, int16 of shape (round(duration_s * SAMPLE_RATE),)."""
        count = round(plan.duration_s * SAMPLE_RATE)
        shift = int(rng.integers(0, _NOISE))
        wave = np.resize(np.roll(self.room, shift), count)
        variants = _contour(rng, len(plan.letters))
        loudness = rng.uniform(0.7, 1.1, len(plan.letters)).astype(np.float32)
        starts = np.rint(plan.starts_s * SAMPLE_RATE).astype(np.int64)
        # Neighbours overlap by the time in which they fade.
        ends = np.minimum(starts + np.rint(plan.lasts_s * SAMPLE_RATE).astype(np.int64) + _FADE, count)
        ends = np.minimum(ends, starts + _LONGEST)
        for letter, start, end, variant, gain in zip(
            plan.letters, starts.tolist(), ends.tolist(), variants.tolist(), loudness, strict=True
        ):
            part = self.sounds[letter][variant][: end - start] * gain
            part[-_FADE:] *= _FADE_OUT[-len(part) :]
            wave[start:end] += part
        wave *= self.level
        return np.clip(wave, -32768, 32767, out=wave).astype(np.int16)


def encode(wave: npt.NDArray[np.int16]) -> bytes:
    """Return a FLAC file of 16-bit samples at SAMPLE_RATE."""
    import soundfile

    # To memory: libsndfile writes to files in many small pieces.
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def _contour(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Return the pitch of every letter as a position in _PITCHES, wandering as a melody does."""
    steps = rng.choice(np.array([-1, 0, 0, 0, 0, 0, 1]), count)
    turn = 2 * len(_PITCHES) - 2
    melody: npt.NDArray[np.int64] = np.cumsum(steps) % turn
    return np.minimum(melody, turn - melody).astype(np.int64)


def _partials(pitch_hz: float, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], _Wave]:
    """Return the frequencies of a voice's partials in Hz, and the partials, float32 of shape (partials, _LONGEST)."""
    frequencies = pitch_hz * np.arange(1.0, int(0.45 * SAMPLE_RATE / pitch_hz) + 1)
    # A voice falls a little within every sound, and trembles.
    seconds = np.arange(_LONGEST) / SAMPLE_RATE
    turns = seconds * (1.0 - 0.25 * seconds) + 2e-5 * np.cumsum(rng.standard_normal(_LONGEST)) / math.sqrt(_LONGEST)
    phases = rng.random(len(frequencies))
    angle: _Wave = (2 * np.pi * (frequencies[:, None] * turns + phases[:, None])).astype(np.float32)
    return frequencies.astype(np.float64), np.sin(angle)


def _sound(
    sound: Sound, throat: float, frequencies: npt.NDArray[np.float64], partials: _Wave, rng: np.random.Generator
) -> _Wave:
    wave = np.zeros(_LONGEST, np.float32)
    if sound.formants_hz is not None:
        gains = 1.0 / np.arange(1, len(frequencies) + 1)
        for formant_hz, bandwidth_hz in zip(sound.formants_hz, _BANDWIDTHS_HZ, strict=True):
            ratio = frequencies / (formant_hz * throat)
            gains /= np.hypot(1 - ratio**2, ratio * bandwidth_hz / formant_hz)
        voiced = gains.astype(np.float32) @ partials
        voiced /= np.sqrt(np.mean(voiced**2))
        voiced += _BREATH * rng.standard_normal(_LONGEST, np.float32)
        wave += voiced * 10 ** (sound.voice_db / 20)
    if sound.band_hz is not None:
        wave += _noise(sound.band_hz, rng) * 10 ** (sound.noise_db / 20)
    if sound.closed:
        quiet = int(0.02 * SAMPLE_RATE)
        wave[:quiet] *= 0.05
        wave[quiet:] *= np.exp(-np.arange(_LONGEST - quiet) / (0.015 * SAMPLE_RATE))
    wave[:_FADE] *= _FADE_IN
    return wave


def _noise(band_hz: tuple[float, float], rng: np.random.Generator) -> _Wave:
    """Return noise of level 1 within a band."""
    spectrum = np.fft.rfft(rng.standard_normal(_LONGEST))
    frequencies = np.fft.rfftfreq(_LONGEST, 1 / SAMPLE_RATE)
    low, high = band_hz
    spectrum *= 1 / (1 + (low / np.maximum(frequencies, 1.0)) ** 6) / (1 + (frequencies / high) ** 6)
    wave: npt.NDArray[np.float64] = np.fft.irfft(spectrum, _LONGEST)
    wave /= np.sqrt(np.mean(wave**2))
    return wave.astype(np.float32)


_FADE_IN: Final[_Wave] = (np.sin(np.linspace(0, np.pi / 2, _FADE)) ** 2).astype(np.float32)
_FADE_OUT: Final[_Wave] = _FADE_IN[::-1].copy()
