"""Reads the transcripts that lie beside recordings: CHAPTER/SPEAKER-CHAPTER.trans.txt, a line for each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from harness.datasets.handle import Progress
from harness.datasets.threads import in_threads

__all__ = ["Transcripts"]

_ALPHABET: Final = frozenset(" 'ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Transcripts:
    """The transcripts of some recordings, and what is wrong with those that have none."""

    def __init__(self, root: Path, paths: Iterable[str], progress: Progress) -> None:
        """Read the transcripts of every folder of `paths`, which are relative to the root."""
        self._paths = tuple(paths)
        folders = sorted({path.rpartition("/")[0] for path in self._paths})
        self._lines: dict[str, dict[str, str]] = {}
        self._problems: dict[str, str] = {}
        found = in_threads(
            lambda folder: _read(root, folder),
            folders,
            lambda done: progress("reading transcripts", done, len(folders)),
        )
        for folder, read in zip(folders, found, strict=True):
            if isinstance(read, str):
                self._problems[folder] = read
            else:
                self._lines[folder] = read

    def of(self, path: str) -> str:
        """Return what is said in a recording; empty where nothing is known."""
        folder, _, name = path.rpartition("/")
        return self._lines.get(folder, {}).get(_stem(name), "")

    def problem(self, path: str) -> str | None:
        """Say what is wrong with a recording's transcript, None if nothing is."""
        folder, _, name = path.rpartition("/")
        if folder in self._problems:
            return f"has no transcript: {self._problems[folder]}"
        said = self._lines[folder].get(_stem(name))
        if said is None:
            return f"has no transcript: no line of {_name(folder)} begins with {_stem(name)}"
        if not said:
            return f"has an empty transcript in {_name(folder)}"
        strange = sorted(set(said) - _ALPHABET)
        if strange:
            return (
                f"has {strange[0]!r} in its transcript in {_name(folder)}; "
                "expected upper-case letters, spaces and apostrophes"
            )
        return None

    def without_recording(self) -> int:
        """Return how many transcripts have no recording."""
        recorded: dict[str, set[str]] = {}
        for path in self._paths:
            folder, _, name = path.rpartition("/")
            recorded.setdefault(folder, set()).add(_stem(name))
        return sum(len(lines.keys() - recorded[folder]) for folder, lines in self._lines.items())


def _read(root: Path, folder: str) -> dict[str, str] | str:
    """Return the lines of a folder by the recordings' names, or what is wrong."""
    name = _name(folder)
    try:
        text = (root / folder / name.rpartition("/")[2]).read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{name} does not exist"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        return f"{name} is not UTF-8"
    split = (line.strip().partition(" ") for line in text.splitlines() if line.strip())
    return {stem: said.strip() for stem, _, said in split}


def _name(folder: str) -> str:
    """Return where a chapter's transcripts are: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt."""
    above, _, chapter = folder.rpartition("/")
    speaker = above.rpartition("/")[2]
    return f"{folder}/{speaker}-{chapter}.trans.txt"


def _stem(name: str) -> str:
    return name.rpartition(".")[0]
