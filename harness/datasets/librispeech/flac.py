"""Judges FLAC files of speech without decoding the whole of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import soundfile

__all__ = ["SAMPLE_RATE", "defect", "duration_s"]

SAMPLE_RATE: Final = 16_000
"""Samples per second of LibriSpeech (Panayotov et al., ICASSP 2015)."""

_TAIL: Final = 256
"""Samples that are decoded, at the end."""


def defect(path: Path) -> str | None:
    """Say what is wrong with a FLAC file, None if nothing is.

    The header is read and the end decoded, which tells a file that was cut short; what is damaged between them is
    found by the sums of its frames when it is decoded for training.
    """
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "is empty"
            file.seek(0)
            with soundfile.SoundFile(file) as sound:
                return _wrong(sound)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        return f"is truncated or no FLAC ({error})"


def duration_s(path: Path) -> float:
    """Return how long a FLAC file lasts in seconds, by its header."""
    about = soundfile.info(str(path))
    return float(about.frames / about.samplerate)


def _wrong(sound: soundfile.SoundFile) -> str | None:
    if sound.format != "FLAC":
        return f"holds {sound.format}, expected FLAC"
    if sound.channels != 1:
        return f"has {sound.channels} channels, expected 1"
    if sound.samplerate != SAMPLE_RATE:
        return f"has {sound.samplerate} samples per second, expected {SAMPLE_RATE}"
    if sound.frames < 1:
        return "holds no sound"
    wanted = min(_TAIL, sound.frames)
    sound.seek(-wanted, soundfile.SEEK_END)
    if len(sound.read(wanted, dtype="int16")) < wanted:
        return "is truncated (its last samples are missing)"
    return None
