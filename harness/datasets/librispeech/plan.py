"""What is said in an utterance, and when: the letters of its transcript on a time line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.datasets.librispeech.sounds import PAUSES, SOUNDS
from harness.datasets.librispeech.text import draw_words

__all__ = ["Plan"]

_EDGE_S = (0.15, 0.45)
"""Shortest and longest silence before the first word and after the last, in seconds."""
_MOST_EDGE = 0.1
"""Of the utterance, that each of these may take."""
_MOST_WORDS_PER_S = 6
"""No more are said, not even of the shortest words."""
_LEAST_STRETCH = 0.3
"""Of letters, when there is no room for even one word."""
_NOMINAL_S = {letter: sound.nominal_s for letter, sound in SOUNDS.items()}


@dataclass(frozen=True, slots=True)
class Plan:
    """An utterance before it is spoken."""

    transcript: str
    """Upper case, spaces and apostrophes."""
    letters: str
    """The letters that sound."""
    starts_s: npt.NDArray[np.float64]
    """When each of them begins, in seconds, shape (letters,)."""
    lasts_s: npt.NDArray[np.float64]
    """How long each of them sounds, in seconds, shape (letters,)."""
    duration_s: float
    """Of the whole utterance, its silence at both ends too."""

    @classmethod
    def draw(cls, rng: np.random.Generator, cost: float, pause_cost: float, pace: float) -> Plan:
        """Draw words and pauses that are worth `cost`.

        A second of speech is worth 1 and a second of silence `pause_cost`; `pace` divides every duration. Words are
        taken while they fit, and then all letters are stretched to take up what is left.
        """
        lead_s, tail_s = np.minimum(rng.uniform(*_EDGE_S, 2), _MOST_EDGE * cost).tolist()
        most = int(cost * pace * _MOST_WORDS_PER_S) + 4
        words = draw_words(rng, most)
        shortest, longest, shares = (np.array(column) for column in zip(*PAUSES, strict=True))
        kinds = rng.choice(len(PAUSES), most, p=shares)
        gaps = rng.uniform(shortest[kinds], longest[kinds]) / pace
        gaps[0] = 0.0
        spoken = [[letter for letter in word if letter in SOUNDS] for word in words]
        counts = np.array([len(letters) for letters in spoken])
        letters = "".join(letter for word in spoken for letter in word)
        lasts = np.array([_NOMINAL_S[letter] for letter in letters])
        lasts *= rng.uniform(0.75, 1.25, len(letters)) / pace
        ends = np.cumsum(counts)
        speech = np.cumsum(lasts)[ends - 1]
        room = cost - (lead_s + tail_s) * pause_cost
        taken = max(1, int(np.searchsorted(speech + np.cumsum(gaps) * pause_cost, room, side="right")))
        sounding = int(ends[taken - 1])
        stretch = max(_LEAST_STRETCH, (room - gaps[:taken].sum() * pause_cost) / speech[taken - 1])
        lasts = lasts[:sounding] * stretch
        before = np.repeat(np.cumsum(gaps[:taken]), counts[:taken])
        starts = lead_s + before + np.cumsum(lasts) - lasts
        duration_s = float(starts[-1] + lasts[-1] + tail_s)
        return cls(" ".join(words[:taken]), letters[:sounding], starts, lasts, duration_s)
