"""A made-up dataset that is to a loader what LibriSpeech is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.datasets.checks import check_count, check_name, check_scale
from harness.datasets.generate import GeneratedDataset
from harness.datasets.librispeech.recipe import SpeechRecipe

__all__ = ["LibriSpeechLike"]

_LEAST_SCALE: Final = 0.05
"""The shortest recordings hold a syllable then."""
_MOST_SCALE: Final = 10.0


@dataclass(frozen=True, slots=True)
class LibriSpeechLike(GeneratedDataset):
    """FLAC files of 16 kHz, one channel and 16 bits, with their transcripts, in LibriSpeech's folders.

    At scale 1 files have the 0.06 to 0.34 MB, mean 0.2 MB, of the MinatoLoader paper (section 2.2).
    """

    name: str
    samples: int = 240
    scale: float = 0.25
    """Factor on the sizes and durations."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_count("seed", self.seed, least=0)
        check_scale(self.scale, least=_LEAST_SCALE, most=_MOST_SCALE)

    @property
    def recipe(self) -> SpeechRecipe:
        """Return what is to be made; the samples' columns are transcript (string) and duration_s (float64)."""
        return SpeechRecipe(self.samples, float(self.scale), self.seed)
