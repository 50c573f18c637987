"""Folders of images, and of recordings with their transcripts: root/class/name, or files without classes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from loaders.errors import LoaderConfigError, SampleError
from loaders.streaming.shards.classes import Classes, assign_labels
from loaders.streaming.shards.convert.source import (
    Broken,
    Content,
    Item,
    Source,
    check_regular,
    list_classes,
    list_files,
    read_file,
    read_regular,
    try_item,
)
from loaders.streaming.shards.example import Feature

__all__ = ["AUDIO_SUFFIXES", "IMAGE_SUFFIXES", "audio_folder", "check_image", "image_tree", "read_image"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")

_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_FILL, _SCAN, _END = 0xFF, 0xDA, 0xD9
_ALONE = (0x00, 0x01, *range(0xD0, 0xD9))
"""JPEG markers without a segment after them."""
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"


def image_tree(root: Path, *, classes: Classes | None = None, broken: list[Broken] | None = None) -> Source:
    """List the images below a folder; a label is the place of its class folder among all, in order, or as given.

    Files that cannot be looked at are added to `broken`, if that is a list.

    Raises LoaderConfigError naming what is missing or in the way.
    """
    found, ignored = [], 0
    for name, path in list_files(root):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            found.append((name, path))
        else:
            ignored += 1
    if not found:
        raise LoaderConfigError(f"{root}: no image below it ({', '.join(IMAGE_SUFFIXES)}); expected class/name.jpg")
    labels = assign_labels(list_classes(root, [name for name, _ in found]), classes, root)
    items = []
    for name, path in found:
        label = labels.get(name.partition("/")[0], -1)
        item = try_item(name, partial(make_item, name, path, label), broken)
        if item is not None:
            items.append(item)
    return Source(
        "image-tree",
        root,
        tuple(items),
        "image/class/label",
        "image/path",
        read_image,
        labels,
        ignored,
        broken=tuple(broken or ()),
    )


def make_item(name: str, path: Path, label: int) -> Item:
    """Return a file as an item whose payload is the file; raises SampleError when it cannot be looked at."""
    try:
        status = path.stat()
        check_regular(status, path)
    except OSError as error:
        raise SampleError(f"{path}: {error.strerror}; restore it or take it away") from error
    return Item(name, label, status.st_size, status.st_mtime_ns, status.st_size)


def read_image(root: Path, item: Item, sample_id: int) -> Content:
    """Return an image as it is stored; raises SampleError when it cannot be read or is not whole."""
    path = root / item.name
    image = read_file(path, sample_id, item.size)
    check_image(image, f"sample {sample_id}, {path}")
    return Content("image/encoded", image, item.features)


def check_image(image: bytes, where: str) -> None:
    """Raise SampleError, which starts with `where`, unless the bytes begin and end as a JPEG or PNG file's do.

    It is not decoded: that a picture is whole inside is for its decoder to say.
    """
    if image.startswith(_JPEG):
        whole = _has_scan_and_end(image)
    elif image.startswith(_PNG):
        whole = _PNG_END in image
    else:
        raise SampleError(f"{where}: no JPEG or PNG file ({image[:8].hex(' ') or 'empty'}); restore it or take it away")
    if not whole:
        raise SampleError(f"{where}: the image is cut short; restore it or take it away")


def _has_scan_and_end(image: bytes) -> bool:
    """Return whether a JPEG file has an end after its first scan; its thumbnail and what follows it do not count."""
    at = 2
    while (at := image.find(_FILL, at)) >= 0 and at + 4 <= len(image):
        marker = image[at + 1]
        if marker == _SCAN:
            return image.find(_JPEG_END, at) >= 0
        if marker == _END:
            return False
        if marker == _FILL:
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + int.from_bytes(image[at + 2 : at + 4], "big")
    return False


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
    for name, path in list_files(root):
        if path.suffix.lower() in _MAGIC:
            found.append((name, path))
        elif name.endswith(_TRANSCRIPTS):
            transcribed.add(str(path.parent))
            texts.update(_transcripts(path))
        else:
            ignored += 1
    if not found:
        raise LoaderConfigError(f"{root}: no recording below it ({', '.join(_MAGIC)}); expected class/name.wav")
    labels = assign_labels(list_classes(root, [name for name, _ in found]), classes, root)

    def item_of(name: str, path: Path) -> Item:
        features: dict[str, Feature] = {"audio/format": [path.suffix.lower()[1:].encode()]}
        if str(path.parent) in transcribed:
            key = str(path.with_suffix(""))
            if key not in texts:
                raise LoaderConfigError(f"{path}: the transcripts (*{_TRANSCRIPTS}) beside it have no line for it")
            features["audio/text"] = [texts[key].encode()]
        return replace(make_item(name, path, labels.get(name.partition("/")[0], -1)), features=features)

    items = []
    spoken: list[str | None] = []
    for name, path in found:
        item = try_item(name, partial(item_of, name, path), broken)
        if item is not None:
            items.append(item)
            spoken.append(texts[str(path.with_suffix(""))] if "audio/text" in item.features else None)
    source = Source(
        "audio",
        root,
        tuple(items),
        "label",
        "audio/path",
        _read_recording,
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


def _read_recording(root: Path, item: Item, sample_id: int) -> Content:
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
