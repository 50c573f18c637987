"""The characters that speech is recognised as, and their numbers."""

from __future__ import annotations

from typing import Final

import torch

from loaders.pipeline import UndecodableError

__all__ = ["BLANK", "CHARACTERS", "SYMBOLS", "label_of", "text_of"]

CHARACTERS: Final = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""LibriSpeech's alphabet (Panayotov et al., ICASSP 2015); a character's label is 1 and its position here."""
BLANK: Final = 0
"""The label that stands for no character."""
SYMBOLS: Final = len(CHARACTERS) + 1
"""How many labels there are, the blank among them."""

_LABELS: Final = {character: label for label, character in enumerate(CHARACTERS, 1)}


def label_of(transcript: str) -> torch.Tensor:
    """Return the labels of a transcript, int64 of shape (characters,); raises UndecodableError naming a character."""
    try:
        return torch.tensor([_LABELS[character] for character in transcript], dtype=torch.int64)
    except KeyError as error:
        raise UndecodableError(
            f"its transcript has the character {error.args[0]!r} in {transcript[:40]!r}; "
            "expected upper-case letters, spaces and apostrophes"
        ) from None


def text_of(labels: torch.Tensor) -> str:
    """Return the transcript of labels, int64 of shape (n,), leaving out blanks."""
    return "".join(CHARACTERS[label - 1] for label in labels.tolist() if label != BLANK)
