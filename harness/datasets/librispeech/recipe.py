"""What made-up speech is: how many recordings of which sizes, and every recording from its id alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import PurePosixPath
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.librispeech.plan import Plan
from harness.datasets.librispeech.voice import PAUSE_COST, SPEECH_BYTES_PER_S, Voice, encode
from harness.datasets.quantiles import quantiles
from harness.datasets.recipe import Content, recipe_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MEAN_BYTES", "SpeechRecipe"]

_VERSION: Final = 1
"""Raised with every change that alters a recording, so that no older tree is taken for a new one."""

_LEAST_BYTES: Final = 60_000.0
_MOST_BYTES: Final = 340_000.0
MEAN_BYTES: Final = 200_000.0
"""Sizes of LibriSpeech's files, 0.06 to 0.34 MB with a mean of 0.2 MB: MinatoLoader paper, section 2.2."""
_DEVIATION_BYTES: Final = 60_000.0
"""Not published. Sizes are normal within these bounds, whose middle is the mean."""

_HEADER_BYTES: Final = 100
"""Of a FLAC file as libsndfile writes it."""

_CHAPTER: Final = 20
"""Recordings of one chapter."""
_CHAPTERS: Final = 2
"""Of one speaker."""
_MOST_SPEAKERS: Final = 8_975
"""The greatest number that a speaker of LibriSpeech has (SPEAKERS.TXT)."""


@dataclass(frozen=True)
class SpeechRecipe:
    """Recordings of made-up speakers; equal recipes make equal bytes."""

    samples: int
    scale: float
    """Factor on the published sizes, and so on the durations."""
    seed: int
    noun: ClassVar[str] = "recordings"
    together: ClassVar[int] = _CHAPTER * _CHAPTERS  # of one voice

    def key(self) -> str:
        """Return 16 hex digits that tell this recipe from any other."""
        return recipe_key(self, _VERSION)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Wanted size of every recording in bytes, shape (samples,)."""
        rng = np.random.default_rng([self.seed, 0x51])
        normal = NormalDist(MEAN_BYTES, _DEVIATION_BYTES)
        low, high = normal.cdf(_LEAST_BYTES), normal.cdf(_MOST_BYTES)
        drawn = [normal.inv_cdf(low + float(q) * (high - low)) for q in quantiles(rng, self.samples)]
        return np.array(drawn * np.array(self.scale)).astype(np.int64)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Speaker of every recording, counted from 0, shape (samples,)."""
        return np.array([_speaker(sample_id) for sample_id in range(self.samples)], np.int64)

    def paths(self) -> tuple[str, ...]:
        """Return SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac of every recording."""
        return tuple(self._path(sample_id) for sample_id in range(self.samples))

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one recording."""
        plan = self._plan(sample_id)
        voice = _voice(self.seed, _speaker(sample_id))
        wave = voice.speak(plan, np.random.default_rng([self.seed, 0x5D, sample_id]))
        yield self._path(sample_id), encode(wave)

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield SPEAKER-CHAPTER.trans.txt of every chapter: a line for each recording, its name and what is said."""
        named = zip(map(PurePosixPath, self.paths()), self._outline, strict=True)
        for folder, lines in groupby(named, key=lambda each: each[0].parent):
            speaker, chapter = folder.parts
            text = "".join(f"{path.stem} {said}\n" for path, (said, _) in lines)
            yield f"{folder}/{speaker}-{chapter}.trans.txt", text.encode()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return transcript (string) and duration_s (float64) of every recording."""
        import pyarrow as pa

        return {
            "transcript": pa.array([said for said, _ in self._outline], pa.string()),
            "duration_s": pa.array([duration_s for _, duration_s in self._outline], pa.float64()),
        }

    def describe(self) -> Mapping[str, Any]:
        """Return how long the recordings are together, in seconds, and how many speakers there are."""
        return {
            "duration_s": round(sum(duration_s for _, duration_s in self._outline), 1),
            "speakers": _speaker(self.samples - 1) + 1,
        }

    @cached_property
    def _outline(self) -> list[tuple[str, float]]:
        """Transcript and duration in seconds of every recording; whole plans would fill the memory."""
        plans = (self._plan(sample_id) for sample_id in range(self.samples))
        return [(plan.transcript, plan.duration_s) for plan in plans]

    def _plan(self, sample_id: int) -> Plan:
        rng = np.random.default_rng([self.seed, 0x7E, sample_id])
        pace = float(np.random.default_rng([self.seed, 0xACE, _speaker(sample_id)]).uniform(0.95, 1.25))
        cost = (int(self.sizes[sample_id]) - _HEADER_BYTES) / SPEECH_BYTES_PER_S
        return Plan.draw(rng, cost, PAUSE_COST, pace)

    @cached_property
    def _numbers(self) -> tuple[list[int], list[int]]:
        """Return the numbers of speakers and of chapters, as scattered as LibriSpeech's."""
        rng = np.random.default_rng([self.seed, 0x1D])
        speakers = _speaker(self.samples - 1) + 1
        most = max(_MOST_SPEAKERS, 4 * speakers)
        chosen = np.sort(rng.choice(np.arange(1, most + 1), speakers, replace=False))
        chapters = rng.choice(np.arange(100, 100 + 60 * speakers * _CHAPTERS), speakers * _CHAPTERS, replace=False)
        return chosen.tolist(), np.sort(chapters.reshape(-1, _CHAPTERS), axis=1).ravel().tolist()

    def _path(self, sample_id: int) -> str:
        speakers, chapters = self._numbers
        position = sample_id // _CHAPTER
        speaker, chapter = speakers[position // _CHAPTERS], chapters[position]
        return f"{speaker}/{chapter}/{speaker}-{chapter}-{sample_id % _CHAPTER:04d}.flac"


def _speaker(sample_id: int) -> int:
    return sample_id // SpeechRecipe.together


@lru_cache(maxsize=1)
def _voice(seed: int, speaker: int) -> Voice:
    return Voice.make(np.random.default_rng([seed, 0x701CE, speaker]))
