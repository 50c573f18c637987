"""Generated speech: to a loader what LibriSpeech is."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import PurePosixPath
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.generate import GeneratedDataset, quantiles
from harness.datasets.worker import Content
from harness.system.values import check_number

if TYPE_CHECKING:
    import pyarrow as pa


SAMPLE_RATE: Final = 16_000
"""Samples per second of LibriSpeech (Panayotov et al., ICASSP 2015)."""

_MIN_BYTES, _MEAN_BYTES, _MAX_BYTES = 60_000.0, 200_000.0, 340_000.0
"""Sizes of LibriSpeech's files, 0.06 to 0.34 MB with a mean of 0.2 MB: MinatoLoader paper, section 2.2."""
_DEVIATION_BYTES: Final = 60_000.0
"""Not published. Sizes are normal within these bounds, whose middle is the mean."""
_HEADER_BYTES: Final = 100
"""Of a FLAC file as libsndfile writes it."""
_SPEECH_BYTES_PER_S: Final = 21_500.0
_PAUSE_BYTES_PER_S: Final = 7_500.0
"""Of FLAC; together the 16.7 kB/s of LibriSpeech: about 60 GB in 1 000 hours."""
_PAUSES: Final = (0.34, 0.045)
"""Share of an utterance in which nobody speaks, mean and deviation."""
_CHARACTERS_PER_S: Final = 15.0

_CHAPTER, _SPEAKER = 20, 40
"""Recordings of one chapter, and of one speaker."""

_TEXT: Final = """
THE AND OF TO A IN THAT HE WAS IT HIS HER WITH AS FOR YOU NOT BUT ON SHE BE HAVE ALL THIS WHICH FROM THERE WHEN SAID
WOULD THEIR WHAT INTO VERY LITTLE ABOUT OVER OTHER AFTER BEFORE NEVER AGAIN EVERY WITHOUT NOTHING FATHER MOTHER WATER
DON'T PEOPLE THROUGH MOMENT ALWAYS ANOTHER MORNING ENOUGH PERHAPS QUESTION JOURNEY EXACTLY BRAZEN
"""
_WORDS: Final = _TEXT.split()
_WEIGHTS: Final = 1 / np.arange(2, len(_WORDS) + 2)
"""The common words are drawn often: nearly Zipf's law."""

_SOUNDS: Final = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EDGE: Final = 1 << 15
"""Values of a sound, which is repeated."""
_LEVEL: Final = 1540.0
_ROOM: Final = 3.0
_BREATH: Final = 0.004
"""Levels of letters and of the noise between words, in units of a 16-bit sample, and of what letters have outside their
bands, as a share: files then take the bytes per second above."""


@dataclass(frozen=True)
class LibriSpeechLike(GeneratedDataset):
    """FLAC files of 16 kHz, one channel and 16 bits, with their transcripts, in LibriSpeech's folders.

    At scale 1 files have the 0.06 to 0.34 MB, mean 0.2 MB, of the MinatoLoader paper (section 2.2). The samples'
    columns are transcript (string) and duration_s (float64).
    """

    version: ClassVar[int] = 2

    samples: int = 240
    scale: float = 0.25
    """Factor on the published sizes, and so on the durations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(
            "dataset.scale", self.scale, minimum=0.05, maximum=10.0
        )  # the shortest recordings hold a word at least

    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every recording of a set of `count`, shape (count,)."""
        normal = NormalDist(_MEAN_BYTES, _DEVIATION_BYTES)
        low, high = normal.cdf(_MIN_BYTES), normal.cdf(_MAX_BYTES)
        drawn = quantiles(np.random.default_rng([self.seed, 0x51]), count)
        return np.array([self.scale * normal.inv_cdf(low + float(q) * (high - low)) for q in drawn]).astype(np.int64)

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the speaker of every recording, counted from 0, shape (samples,)."""
        return np.arange(self.samples, dtype=np.int64) // _SPEAKER

    def path(self, sample_id: int) -> str:
        """Return SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac."""
        speaker, chapter = 1001 + sample_id // _SPEAKER, 120_001 + sample_id // _CHAPTER
        return f"{speaker}/{chapter}/{speaker}-{chapter}-{sample_id % _CHAPTER:04d}.flac"

    def files(self, sample_id: int) -> Iterator[tuple[str, Content]]:
        """Yield path and bytes of one recording."""
        yield self.path(sample_id), _spoken(*self._plan(sample_id), np.random.default_rng([self.seed, 0x5D, sample_id]))

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield SPEAKER-CHAPTER.trans.txt of every chapter: a line for each recording, its name and its words."""
        named = zip(map(PurePosixPath, self.paths()), self._outline, strict=True)
        for folder, lines in groupby(named, key=lambda each: each[0].parent):
            speaker, chapter = folder.parts
            text = "".join(f"{path.stem} {text}\n" for path, (text, _) in lines)
            yield f"{folder}/{speaker}-{chapter}.trans.txt", text.encode()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return transcript (string) and duration_s (float64) of every recording."""
        import pyarrow as pa

        texts, durations = zip(*self._outline, strict=True)
        return {"transcript": pa.array(texts, pa.string()), "duration_s": pa.array(durations, pa.float64())}

    @cached_property
    def _outline(self) -> list[tuple[str, float]]:
        """Transcript and duration in seconds of every recording."""
        plans = map(self._plan, range(self.samples))
        return [(text, float(counts.sum()) / SAMPLE_RATE) for text, counts in plans]

    def _plan(self, sample_id: int) -> tuple[str, npt.NDArray[np.int64]]:
        """Return a transcript, and how many PCM samples each of its characters and the space around it take."""
        rng = np.random.default_rng([self.seed, 0x7E, sample_id])
        pauses = float(np.clip(rng.normal(*_PAUSES), 0.15, 0.5))
        rate = (1 - pauses) * _SPEECH_BYTES_PER_S + pauses * _PAUSE_BYTES_PER_S
        seconds = (int(self.sizes[sample_id]) - _HEADER_BYTES) / rate
        words = rng.choice(_WORDS, int(seconds * _CHARACTERS_PER_S / 2) + 1, p=_WEIGHTS / _WEIGHTS.sum()).tolist()
        lengths = np.cumsum([len(word) + 1 for word in words])
        text = " ".join(words[: max(1, int(np.searchsorted(lengths, seconds * _CHARACTERS_PER_S)))])
        silent = np.array([character == " " for character in f" {text} "])
        # Most words follow one another at once; a few pauses are long.
        shares = np.where(silent, rng.gamma(0.5, size=len(silent)), rng.uniform(0.75, 1.25, len(silent)))
        shares *= np.where(silent, pauses / shares[silent].sum(), (1 - pauses) / shares[~silent].sum())
        ends = np.rint(np.cumsum(shares) * seconds * SAMPLE_RATE)
        return text, np.diff(ends, prepend=0.0).astype(np.int64)


def _spoken(text: str, counts: npt.NDArray[np.int64], rng: np.random.Generator) -> bytes:
    """Return a FLAC file in which every letter sounds in a frequency band of its own."""
    import soundfile

    sounds = np.array([_SOUNDS.index(character) for character in f" {text} "])
    at = (np.arange(counts.sum()) + rng.integers(0, _EDGE)) % _EDGE
    loudness = rng.uniform(0.7, 1.1, len(sounds)).astype(np.float32)
    wave = _bank()[np.repeat(sounds, counts), at] * np.repeat(loudness, counts)
    # To memory: libsndfile writes to files in many small pieces.
    buffer = io.BytesIO()
    soundfile.write(buffer, np.rint(wave).astype(np.int16), SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _bank() -> npt.NDArray[np.float32]:
    """Return the sound of every character in units of a 16-bit sample, shape (characters, _EDGE)."""
    rng = np.random.default_rng(0x701CE)
    spectrum = np.fft.rfft(rng.standard_normal((len(_SOUNDS), _EDGE), np.float32))
    frequencies = np.fft.rfftfreq(_EDGE, 1 / SAMPLE_RATE)
    middles = 180.0 * 1.13 ** np.arange(len(_SOUNDS))[:, None]
    spectrum *= 1 / (1 + ((frequencies - middles) / (0.25 * middles)) ** 2) + _BREATH
    waves = np.fft.irfft(spectrum, _EDGE).astype(np.float32)
    waves *= _LEVEL / waves.std(axis=1, keepdims=True)
    waves[0] = _ROOM * rng.standard_normal(_EDGE, np.float32)
    return waves
