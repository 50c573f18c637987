"""What the letters of a transcript sound like: every one its own sound, so that speech can be recognised again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["PAUSES", "SOUNDS", "Sound"]


@dataclass(frozen=True, slots=True)
class Sound:
    """One letter's sound."""

    nominal_s: float
    """Usual duration in seconds."""
    formants_hz: tuple[float, float, float] | None = None
    """Resonances of a voiced sound of a man, in Hz; None for one without voice."""
    voice_db: float = 0.0
    """Level of the voiced part."""
    band_hz: tuple[float, float] | None = None
    """Where the noise of a consonant lies, in Hz; None for one without noise."""
    noise_db: float = 0.0
    """Level of the noise."""
    closed: bool = False
    """Whether it begins with a closure, as plosives do."""


SOUNDS: Final[Mapping[str, Sound]] = {
    # Vowels: formants of men, Peterson and Barney (JASA 1952), table II.
    "A": Sound(0.085, (730, 1090, 2440)),
    "E": Sound(0.080, (530, 1840, 2480)),
    "I": Sound(0.080, (270, 2290, 3010)),
    "O": Sound(0.085, (570, 840, 2410)),
    "U": Sound(0.080, (300, 870, 2240)),
    "Y": Sound(0.070, (390, 1990, 2550)),
    # Nasals and liquids: voiced and weaker.
    "L": Sound(0.060, (360, 1300, 2700), -5),
    "M": Sound(0.060, (250, 1000, 2200), -7),
    "N": Sound(0.060, (250, 1450, 2300), -7),
    "R": Sound(0.060, (420, 1300, 1600), -4),
    "W": Sound(0.060, (300, 610, 2200), -4),
    # Fricatives: noise, some with voice.
    "C": Sound(0.065, None, 0, (2500, 5500), -10),
    "F": Sound(0.065, None, 0, (1500, 7500), -18),
    "H": Sound(0.050, None, 0, (500, 3500), -16),
    "S": Sound(0.075, None, 0, (3800, 7800), -8),
    "X": Sound(0.075, None, 0, (1800, 4200), -10, closed=True),
    "V": Sound(0.055, (300, 1400, 2300), -9, (1500, 7000), -22),
    "Z": Sound(0.065, (280, 1700, 2500), -10, (3800, 7800), -13),
    # Plosives: a closure, then a burst.
    "B": Sound(0.055, (300, 900, 2200), -9, (300, 1500), -14, closed=True),
    "D": Sound(0.055, (300, 1700, 2600), -9, (2500, 4500), -14, closed=True),
    "G": Sound(0.055, (300, 1900, 2200), -9, (1500, 2800), -14, closed=True),
    "J": Sound(0.065, (300, 2000, 2700), -9, (2000, 5000), -12, closed=True),
    "K": Sound(0.060, None, 0, (1400, 3000), -11, closed=True),
    "P": Sound(0.055, None, 0, (400, 1600), -13, closed=True),
    "Q": Sound(0.060, None, 0, (900, 2000), -11, closed=True),
    "T": Sound(0.055, None, 0, (3000, 6500), -11, closed=True),
}
"""By letter; an apostrophe is silent."""

PAUSES: Final = ((0.02, 0.05, 0.78), (0.12, 0.30, 0.17), (0.35, 0.80, 0.05))
"""Pauses between words: shortest and longest in seconds, and their share: none that is heard, breath, sentence."""
