"""A real tree of LibriSpeech."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from harness.datasets.checks import check_tree
from harness.datasets.faults import check_faults
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.librispeech import flac
from harness.datasets.librispeech.transcripts import Transcripts
from harness.datasets.scan import Kind, SampleFile, list_tree
from harness.datasets.threads import in_threads
from harness.datasets.verdicts import shown, verdicts

__all__ = ["LibriSpeechTree"]

_SPEECH: Final = Kind(
    "recordings",
    (".flac",),
    "SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac",
    " beside SPEAKER-CHAPTER.trans.txt, for LibriSpeech the folder train-clean-100 or one above it",
)


@dataclass(frozen=True, slots=True)
class LibriSpeechTree:
    """The recordings below a folder of LibriSpeech that have a transcript, labelled by the order of their speakers.

    Samples' columns are transcript (string) and duration_s (float64, by the files' headers).
    """

    name: str
    root: str
    on_error: str = "raise"
    """Of a recording that is broken or without a transcript: `raise` names it, `skip` leaves it out, reported."""
    limit: int | None = None
    """Take only so many recordings, chosen by `seed`; only these are judged."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_tree(self.name, self.root, self.on_error, self.limit, expected=f"expected a folder of {_SPEECH.layout}")

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Read the transcripts, judge every recording that was not judged before, and return what is whole.

        Raises DatasetError naming dataset.root, or the first recording at fault when on_error is `raise`.
        """
        from loaders.base import Samples

        root = Path(self.root).expanduser().absolute()
        whole = list_tree(root, _SPEECH)
        listing = whole.limited(self.limit, self.seed)
        files = listing.files
        said = Transcripts(root, (file.path for file in files), progress)
        problems = {at: reason for at, file in enumerate(files) if (reason := said.problem(file.path)) is not None}
        # A broken recording is worse than a missing transcript: it is what is told.
        problems |= verdicts(listing, cache, f"checking {self.name}", progress, flac.defect)
        kept = [file for at, file in enumerate(files) if at not in problems]
        faults = {shown(files[at].path): problems[at] for at in sorted(problems)}
        check_faults(root, faults, kept=len(kept), noun="recordings", on_error=self.on_error)
        speakers = [_speaker(file.path) for file in kept]
        numbers = {speaker: label for label, speaker in enumerate(sorted(set(speakers), key=_by_number))}
        durations = _durations(root, kept)
        samples = Samples(
            root,
            tuple(file.path for file in kept),
            np.array([numbers[speaker] for speaker in speakers], np.int64),
            np.array([file.size for file in kept], np.int64),
            {
                "transcript": pa.array([said.of(file.path) for file in kept], pa.string()),
                "duration_s": pa.array(durations, pa.float64()),
            },
        )
        told = {
            "root": str(root),
            "on_error": self.on_error,
            "samples": len(samples),
            "speakers": len(numbers),
            "duration_s": round(sum(durations), 1),
            "bytes": int(samples.sizes.sum()),
            "mean_kb": round(float(samples.sizes.mean()) / 1000, 1),
            "broken_or_without_transcript": len(problems),
        }
        if listing is whole:
            told["transcripts_without_recording"] = said.without_recording()
        return DatasetHandle(self.name, samples, tuple(faults), _content_hash(kept, said), told)


def _speaker(path: str) -> str:
    return path.rpartition("/")[2].partition("-")[0]


def _by_number(speaker: str) -> tuple[int, str]:
    return (int(speaker), "") if speaker.isdecimal() else (1 << 62, speaker)


def _durations(root: Path, files: Sequence[SampleFile]) -> list[float]:
    return in_threads(lambda file: flac.duration_s(root / file.path), files)


def _content_hash(files: Sequence[SampleFile], said: Transcripts) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.mtime_ns}\0{said.of(file.path)}\n".encode())
    return digest.hexdigest()[:16]
