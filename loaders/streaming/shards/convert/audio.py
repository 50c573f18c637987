"""Folders of recordings: root/class/name.wav, or files without classes in the root, stored as they are encoded.

Transcripts in files *.trans.txt, a name and a text a line as LibriSpeech has them, are stored with their recordings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from loaders.errors import LoaderConfigError, SampleError
from loaders.streaming.shards.classes import Classes, labels_of
from loaders.streaming.shards.convert.images import listed
from loaders.streaming.shards.convert.source import (
    Broken,
    Content,
    Item,
    Source,
    classes_of,
    files_below,
    listed_or_broken,
    read_file,
    read_regular,
)
from loaders.streaming.shards.example import Feature

__all__ = ["AUDIO_SUFFIXES", "audio_folder"]

_MAGIC = {
    ".wav": (b"RIFF", b"RF64"),
    ".flac": (b"fLaC",),
    ".ogg": (b"OggS",),
    ".opus": (b"OggS",),
    ".mp3": (b"ID3", b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2", b"\xff\xe3", b"\xff\xe2"),
}
AUDIO_SUFFIXES = tuple(_MAGIC)
_TRANSCRIPTS = ".trans.txt"


def audio_folder(root: Path, *, classes: Classes | None = None, broken: list[Broken] | None = None) -> Source:
    """List the recordings below a folder; a label is the place of its class folder among all, in order, or as given.

    Recordings that cannot be looked at or lack their transcript are added to `broken`, if that is a list.

    Raises LoaderConfigError naming what is missing or in the way.
    """
    found, ignored = [], 0
    texts: dict[str, str] = {}
    transcribed: set[str] = set()
    for name, path in files_below(root):
        if path.suffix.lower() in _MAGIC:
            found.append((name, path))
        elif name.endswith(_TRANSCRIPTS):
            transcribed.add(str(path.parent))
            texts.update(_transcripts(path))
        else:
            ignored += 1
    if not found:
        raise LoaderConfigError(f"{root}: no recording below it ({', '.join(_MAGIC)}); expected class/name.wav")
    labels = labels_of(classes_of(root, [name for name, _ in found]), classes, root)

    def item_of(name: str, path: Path) -> Item:
        features: dict[str, Feature] = {"audio/format": [path.suffix.lower()[1:].encode()]}
        if str(path.parent) in transcribed:
            key = str(path.with_suffix(""))
            if key not in texts:
                raise LoaderConfigError(f"{path}: the transcripts (*{_TRANSCRIPTS}) beside it have no line for it")
            features["audio/text"] = [texts[key].encode()]
        return replace(listed(name, path, labels.get(name.partition("/")[0], -1)), features=features)

    items = []
    spoken: list[str | None] = []
    for name, path in found:
        item = listed_or_broken(name, partial(item_of, name, path), broken)
        if item is not None:
            items.append(item)
            spoken.append(texts[str(path.with_suffix(""))] if "audio/text" in item.features else None)
    source = Source(
        "audio",
        root,
        tuple(items),
        "label",
        "audio/path",
        _read,
        labels,
        ignored,
        broken=tuple(broken or ()),
    )
    if not transcribed:
        return source
    import pyarrow as pa

    return replace(source, columns={"transcript": pa.array(spoken, pa.string())})


def _transcripts(path: Path) -> dict[str, str]:
    """Return the texts of a file by the recordings' paths without suffix."""
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoaderConfigError(f"{path}: {error}; restore it or take it away") from error
    pairs = (line.strip().partition(" ") for line in lines if line.strip())
    return {str(path.parent / name): text.strip() for name, _, text in pairs}


def _read(root: Path, item: Item, sample_id: int) -> Content:
    path = root / item.name
    recording = read_file(path, sample_id, item.size)
    magic = _MAGIC[path.suffix.lower()]
    if not recording.startswith(magic):
        raise SampleError(
            f"sample {sample_id}, {path}: no {path.suffix.lower()[1:]} file "
            f"({recording[:8].hex(' ') or 'empty'}); restore it or take it away"
        )
    # A writer that did not know the length yet left 0 or all ones.
    stated = int.from_bytes(recording[4:8], "little")
    if recording.startswith(b"RIFF") and stated != 0xFFFFFFFF and stated + 8 > len(recording):
        raise SampleError(
            f"sample {sample_id}, {path}: cut short at {len(recording)} of {stated + 8} bytes; "
            "restore it or take it away"
        )
    return Content("audio/encoded", recording, item.features)
