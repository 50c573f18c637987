"""The pipeline of speech recognition: FLAC and transcript to padded features and labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import soundfile
import torch
from torch.nn.utils.rnn import pad_sequence

from loaders.base import SampleSource
from loaders.pipeline import FilePipeline, Item, Target, Tensors, Transform, UndecodableError
from loaders.pipeline.audio import FilterBank, FrameSplicing, Pad, PermuteAudio, SpecAugment, positions

CHARACTERS: Final = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""LibriSpeech's alphabet (Panayotov et al., ICASSP 2015); a character's label is 1 and its position here."""
BLANK: Final = 0
"""The label that stands for no character."""
SYMBOLS: Final = len(CHARACTERS) + 1
"""How many labels there are, the blank among them."""

_LABELS: Final = {character: label for label, character in enumerate(CHARACTERS, 1)}

FEATURES: Final[tuple[Transform, ...]] = (Pad(), SpecAugment(), FilterBank(), FrameSplicing(), PermuteAudio())
"""The steps of table 1 of the MinatoLoader paper, in its order, that are not emulated."""


@dataclass(frozen=True, slots=True)
class SpeechPipeline(FilePipeline):
    """Reads FLAC files with the transcripts of the dataset's column `transcript`.

    Batches have data float32 of shape (n, T, F), padded with zeros; labels int64 of shape (n, U), padded with the
    blank; and extra `lengths` and `label_lengths`, int64 of shape (n,): how many of T and U are the sample's.
    """

    transforms: tuple[Transform, ...] = FEATURES
    """The last of them has to leave features with time first, shape (T, F)."""
    sample_rate: int = 16_000
    """Of the files, per second."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))

    def decode(self, encoded: bytes | memoryview, samples: SampleSource, sample_id: int) -> tuple[torch.Tensor, Target]:
        """Return the waveform, float32 of shape (samples,) within -1 to 1, and the target.

        The target has labels, int64 of shape (U,), and what `loaders.pipeline.audio` says of time.
        """
        labels = self.labels(samples, sample_id)
        wave = waveform(encoded, self.sample_rate)
        return wave, {"labels": labels, "samples": len(wave), "step": 1, "time": 0}

    def labels(self, samples: SampleSource, sample_id: int) -> torch.Tensor:
        """Return one transcript's labels, int64 of shape (U,); raises UndecodableError."""
        if "transcript" not in samples.columns:
            known = ", ".join(samples.columns) or "none"
            raise UndecodableError(f"the dataset has no column transcript (its columns: {known}); take one of speech")
        transcript = samples.columns["transcript"][sample_id].as_py()
        if not transcript:
            raise UndecodableError("its transcript is empty or missing")
        return label_of(transcript)

    def collate(self, items: Sequence[Item]) -> Tensors:
        """Pad features and labels to the longest of the batch."""
        data = pad_sequence([item.data for item in items], batch_first=True)
        labels = pad_sequence([item.target["labels"] for item in items], batch_first=True, padding_value=BLANK)
        lengths = torch.tensor([positions(item.target) for item in items], dtype=torch.int64)
        label_lengths = torch.tensor([len(item.target["labels"]) for item in items], dtype=torch.int64)
        return Tensors(data, labels, {"lengths": lengths, "label_lengths": label_lengths})


def waveform(encoded: bytes | memoryview, sample_rate: int) -> torch.Tensor:
    """Decode a sound file of one channel, float32 of shape (samples,) within -1 to 1.

    Raises UndecodableError for bytes that are no whole sound, several channels, or another sample rate.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            channels, rate, expected = file.channels, file.samplerate, file.frames
            wave = file.read(dtype="float32")
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        raise UndecodableError(f"not a whole sound of {len(encoded)} bytes: {error}") from error
    if channels != 1:
        raise UndecodableError(f"it has {channels} channels, expected 1; mix it down")
    if rate != sample_rate:
        raise UndecodableError(f"it has {rate} samples per second, expected {sample_rate}; resample it")
    if not len(wave) or len(wave) < expected:
        raise UndecodableError(f"not a whole sound: {len(wave)} of {expected} samples can be decoded")
    return torch.from_numpy(wave)


def label_of(transcript: str) -> torch.Tensor:
    """Return the labels of a transcript, int64 of shape (characters,); raises UndecodableError naming a character."""
    try:
        return torch.tensor([_LABELS[character] for character in transcript], dtype=torch.int64)
    except KeyError as error:
        raise UndecodableError(
            f"its transcript has the character {error.args[0]!r} in {transcript[:40]!r}; "
            "expected upper-case letters, spaces and apostrophes"
        ) from None
