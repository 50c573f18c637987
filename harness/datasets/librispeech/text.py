"""Transcripts: words of English in LibriSpeech's alphabet, the common ones often."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["WORDS", "draw_words"]

_WORDS: Final = """
THE AND OF TO A IN I THAT HE WAS IT HIS HER WITH AS HAD FOR YOU NOT BUT AT ON SHE BE IS HIM THEY MY HAVE ALL THIS
WHICH BY SO ME FROM THERE NO ONE WERE WHEN OR WHO THEM SAID AN WOULD THEIR IF WE WHAT WILL OUT UP THEN BEEN MORE
COULD INTO NOW MAN SOME YOUR VERY DO LIKE THAN LITTLE TIME ABOUT OVER UPON ONLY ANY OTHER WELL DOWN SUCH AFTER
BEFORE GOOD CAME MADE OLD NEVER GREAT SEE DAY MUCH KNOW WAY COME SHOULD MUST MIGHT LONG HOW WHERE FIRST MEN AGAIN
HAND TWO EYES LIFE HOUSE WENT THOUGHT NIGHT STILL HEAD YOUNG BACK THOSE PLACE THOUGH WORK MOST YOUNGER FOUND WORLD
LOOKED EVERY AWAY WITHOUT NOTHING LEFT FATHER MOTHER FACE HEART WATER DON'T ROOM PEOPLE JUST YEARS UNDER THROUGH
SEEMED MOMENT ALWAYS ANOTHER KING TOOK THING VOICE LIGHT MIND MORNING IT'S FAR LADY WHITE THREE SMALL KNEW HALF
DOOR COURSE QUITE ENOUGH RATHER POWER ONCE SIDE HUNDRED COUNTRY TURNED PERHAPS WHOLE HEARD WORDS BETTER STOOD
QUESTION CHILDREN EVENING SOMETHING ALMOST BETWEEN STREET LARGE RIVER HORSE I'LL FOREST CAPTAIN SUDDENLY QUIET
OBJECT EXACTLY ZEAL FIXED JOURNEY VILLAGE FATHER'S WINDOW REPLIED BEAUTIFUL STRANGE GARDEN SILENCE CAN'T BRAZEN
"""
WORDS: Final = tuple(_WORDS.split())
"""The common words of older English prose, roughly in the order of how often they are met."""


def draw_words(rng: np.random.Generator, count: int) -> list[str]:
    """Return `count` words, the k-th of the list with a weight of 1 / (k + 2), near to Zipf's law."""
    picks = np.searchsorted(_CUMULATED, rng.random(count), side="right")
    return [WORDS[pick] for pick in picks.tolist()]


def _cumulated() -> npt.NDArray[np.float64]:
    weights = 1.0 / np.arange(2, len(WORDS) + 2)
    total = np.cumsum(weights / weights.sum())
    total[-1] = 1.0
    return total


_CUMULATED: Final = _cumulated()
