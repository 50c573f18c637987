"""A made-up dataset that is to a loader what LibriSpeech is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.datasets.checks import check_count, check_name, check_scale
from harness.datasets.generate import generate
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.librispeech.recipe import SpeechRecipe

__all__ = ["LibriSpeechLike"]

_LEAST_SCALE: Final = 0.05
"""The shortest recordings hold a syllable then."""
_MOST_SCALE: Final = 10.0


@dataclass(frozen=True, slots=True)
class LibriSpeechLike:
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

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Return the dataset, made in `cache` unless it is there; raises DatasetError when it cannot be.

        The samples' columns are transcript (string) and duration_s (float64).
        """
        return generate(self.name, SpeechRecipe(self.samples, float(self.scale), self.seed), cache, progress)
