"""A real tree of LibriSpeech: recordings, and a file of transcripts in every folder, a line for each recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
import soundfile

from harness.datasets import DatasetHandle, Progress
from harness.datasets.librispeech.generated import SAMPLE_RATE
from harness.datasets.scan import SampleFile, in_threads, limited, list_tree
from harness.datasets.tree import RealTree

_LAYOUT: Final = "SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac"
_HINT: Final = " beside SPEAKER-CHAPTER.trans.txt, for LibriSpeech the folder train-clean-100 or one above it"
_TAIL: Final = 256
"""PCM samples that are decoded, at the end."""
_ALPHABET: Final = frozenset(" 'ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True)
class LibriSpeechTree(RealTree):
    """The recordings below a folder of LibriSpeech that have a transcript, labelled by the order of their speakers.

    Samples' columns are transcript (string) and duration_s (float64, by the files' headers).
    """

    noun: ClassVar[str] = "recordings"
    layout: ClassVar[str] = f"a folder of {_LAYOUT}"

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Read the transcripts, judge every recording that was not judged before, and return those that are whole."""
        root = self.folder
        whole = list_tree(root, noun=self.noun, suffixes=(".flac",), layout=_LAYOUT, hint=_HINT).files
        files = limited(whole, self.limit, self.seed)
        folders = sorted({_split(file.path)[0] for file in files})
        what = "reading transcripts"
        read = in_threads(lambda folder: _lines(root, folder), folders, lambda done: progress(what, done, len(folders)))
        lines = dict(zip(folders, read, strict=True))
        texts = {(folder, name): text for folder, (found, _) in lines.items() for name, text in found.items()}
        unsaid = {file.path: reason for file in files if (reason := _problem(file.path, lines)) is not None}
        # A broken recording is worse than a missing transcript, and is named instead of it.
        problems = unsaid | self.verdicts(files, cache, progress, defect)
        faults = {file.path: problems[file.path] for file in files if file.path in problems}
        kept = [file for file in files if file.path not in faults]
        transcripts = [texts[_split(file.path)] for file in kept]
        durations = in_threads(lambda file: float(soundfile.info(str(root / file.path)).duration), kept)
        speakers = [_split(file.path)[1].partition("-")[0] for file in kept]
        by_number = sorted(set(speakers), key=lambda name: (int(name), "") if name.isdecimal() else (1 << 62, name))
        numbers = {speaker: label for label, speaker in enumerate(by_number)}
        labelled = [
            SampleFile(file.path, numbers[speaker], file.size, file.mtime_ns)
            for file, speaker in zip(kept, speakers, strict=True)
        ]
        facts = {
            "speakers": len(numbers),
            "duration_s": round(sum(durations), 1),
            "broken_or_without_transcript": len(faults),
        }
        if files is whole:
            facts["transcripts_without_recording"] = len(texts.keys() - {_split(file.path) for file in files})
        pairs = zip(kept, transcripts, strict=True)
        hashed = (f"{file.path}\0{file.size}\0{file.mtime_ns}\0{text}\n" for file, text in pairs)
        columns = {"transcript": pa.array(transcripts, pa.string()), "duration_s": pa.array(durations, pa.float64())}
        return self.handle(labelled, faults, facts, hashed, columns)


def _split(path: str) -> tuple[str, str]:
    """Return the folder of a recording, and its name without the suffix."""
    folder, _, name = path.rpartition("/")
    return folder, name.rpartition(".")[0]


def _lines(root: Path, folder: str) -> tuple[dict[str, str], str | None]:
    """Return the transcripts of a folder by the recordings' names, and why their file cannot be used, or None."""
    name = _transcripts(folder)
    try:
        text = (root / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}, f"{name} does not exist"
    except OSError as error:
        return {}, f"{name} cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        return {}, f"{name} is not UTF-8"
    split = (line.strip().partition(" ") for line in text.splitlines() if line.strip())
    return {stem: text.strip() for stem, _, text in split}, None


def _transcripts(folder: str) -> str:
    """Return the path of a chapter's transcripts: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt."""
    above, _, chapter = folder.rpartition("/")
    return f"{folder}/{above.rpartition('/')[2]}-{chapter}.trans.txt"


def _problem(path: str, lines: Mapping[str, tuple[dict[str, str], str | None]]) -> str | None:
    """Return why a recording's transcript cannot be used; None for a whole one."""
    folder, name = _split(path)
    (found, unread), file = lines[folder], _transcripts(folder)
    if unread is not None or name not in found:
        return f"has no transcript: {unread or f'no line of {file} begins with {name}'}"
    if not found[name]:
        return f"has an empty transcript in {file}"
    if strange := sorted(set(found[name]) - _ALPHABET):
        expected = "expected upper-case letters, spaces and apostrophes"
        return f"has {strange[0]!r} in its transcript in {file}; {expected}"
    return None


def defect(path: Path) -> str | None:
    """Return why a FLAC file is broken; None for a whole one.

    The header is read and the end decoded, which finds a file that was cut short; damage between them is
    found by the sums of its frames when it is decoded for training.
    """
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "is empty"
            file.seek(0)
            with soundfile.SoundFile(file) as sound:
                return _wrong(sound)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        return f"is truncated or no FLAC ({error})"


def _wrong(sound: soundfile.SoundFile) -> str | None:
    if sound.format != "FLAC":
        return f"holds {sound.format}, expected FLAC"
    if sound.channels != 1:
        return f"has {sound.channels} channels, expected 1"
    if sound.samplerate != SAMPLE_RATE:
        return f"has {sound.samplerate} samples per second, expected {SAMPLE_RATE}"
    if sound.frames < 1:
        return "holds no sound"
    wanted = min(_TAIL, sound.frames)
    sound.seek(-wanted, soundfile.SEEK_END)
    if len(sound.read(wanted, dtype="int16")) < wanted:
        return "is truncated (its last samples are missing)"
    return None
