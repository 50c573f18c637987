"""Folders of images, and of recordings with their transcripts: root/class/name, or files without classes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from loaders.errors import LoaderConfigError, SampleError
from loaders.records.shards.classes import Classes
from loaders.records.shards.convert.listing import (
    Broken,
    Content,
    Item,
    SampleListing,
    list_files,
    list_items,
    list_tree,
    make_item,
    read_file,
    read_regular,
)
from loaders.records.shards.example import Feature

if TYPE_CHECKING:
    from loaders.base import Samples


_OTHERS: Final = (".npy", ".nii.gz", ".nii", ".npz")
"""Suffixes of files that are neither images nor recordings."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")

_JPEG, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_FILL, _SCAN, _END = 0xFF, 0xDA, 0xD9
_ALONE = (0x00, 0x01, *range(0xD0, 0xD9))
"""JPEG markers without a segment after them."""
_PNG, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xae\x42\x60\x82"


def image_tree(root: Path, *, classes: Classes | None = None, broken: list[Broken] | None = None) -> SampleListing:
    """List the images below a folder; a label is the place of its class folder among all, in order, or as given.

    Files whose status cannot be read are added to `broken`, if that is a list.

    Raises LoaderConfigError naming a folder or file that is missing or in the wrong place.
    """
    tree = list_tree(
        root, IMAGE_SUFFIXES, f"image below it ({', '.join(IMAGE_SUFFIXES)}); expected class/name.jpg", classes
    )
    items = list_items(tree.files, lambda name, path: make_item(name, path, tree.label(name)), broken)
    return SampleListing(
        "image-tree",
        root,
        items,
        "image/class/label",
        "image/path",
        read_image,
        tree.labels,
        tree.ignored,
        broken=tuple(broken or ()),
    )


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


def audio_folder(root: Path, *, classes: Classes | None = None, broken: list[Broken] | None = None) -> SampleListing:
    """List the recordings below a folder; a label is the place of its class folder among all, in order, or as given.

    Recordings whose status cannot be read, or that lack their transcript, are added to `broken`, if that is a list.

    Raises LoaderConfigError naming a folder or file that is missing or in the wrong place.
    """
    tree = list_tree(
        root, AUDIO_SUFFIXES, f"recording below it ({', '.join(_MAGIC)}); expected class/name.wav", classes
    )
    scripts = [path for name, path in list_files(root) if name.endswith(_TRANSCRIPTS)]
    transcribed = {path.parent for path in scripts}
    texts = {key: text for path in scripts for key, text in _read_transcripts(path).items()}

    def item_of(name: str, path: Path) -> Item:
        features: dict[str, Feature] = {"audio/format": [path.suffix.lower()[1:].encode()]}
        if path.parent in transcribed:
            key = str(path.with_suffix(""))
            if key not in texts:
                raise LoaderConfigError(f"{path}: the transcripts (*{_TRANSCRIPTS}) beside it have no line for it")
            features["audio/text"] = [texts[key].encode()]
        return replace(make_item(name, path, tree.label(name)), features=features)

    items = list_items(tree.files, item_of, broken)
    source = SampleListing(
        "audio",
        root,
        items,
        "label",
        "audio/path",
        _read_recording,
        tree.labels,
        tree.ignored - len(scripts),
        broken=tuple(broken or ()),
    )
    if not scripts:
        return source
    import pyarrow as pa

    spoken = [
        texts[str((root / item.name).with_suffix(""))] if "audio/text" in item.features else None for item in items
    ]
    return replace(source, columns={"transcript": pa.array(spoken, pa.string())})


def _read_transcripts(path: Path) -> dict[str, str]:
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


def list_samples(samples: Samples) -> SampleListing:
    """Return the samples as a source, each with all its files.

    Raises LoaderConfigError naming a column that a record cannot hold.
    """
    from loaders.records.shards.columns import FILE_SUFFIX, to_storable  # with Arrow, which Samples has anyway

    columns = to_storable(samples.columns)
    beside = {name: column.to_pylist() for name, column in columns.items() if name.endswith(FILE_SUFFIX)}
    sizes, labels = samples.sizes.tolist(), samples.labels.tolist()
    items = tuple(
        Item(name, label, size, 0, size, files={key: paths[at] for key, paths in beside.items() if paths[at]})
        for at, (name, label, size) in enumerate(zip(samples.paths, labels, sizes, strict=True))
    )
    payload, label, path = _features(samples.paths[0])
    return SampleListing("samples", samples.root, items, label, path, partial(_read_sample, payload), columns=columns)


def _features(path: str) -> tuple[str, str, str]:
    """Return the names of the features of a sample's file, its label and its path."""
    name = path.lower()
    if name.endswith(AUDIO_SUFFIXES):
        return "audio/encoded", "label", "audio/path"
    if name.endswith(_OTHERS):
        return "data", "label", "path"
    return "image/encoded", "image/class/label", "image/path"


def _read_sample(payload_name: str, root: Path, item: Item, sample_id: int) -> Content:
    from loaders.records.shards.columns import name_file_feature

    payload = _content(root, item.name, sample_id)
    beside = {name_file_feature(column): _content(root, path, sample_id) for column, path in item.files.items()}
    nbytes = len(payload) + sum(map(len, beside.values()))
    if nbytes != item.size:
        raise SampleError(
            f"sample {sample_id}, {root / item.name}: {nbytes} bytes, {item.size} when the tree was scanned; "
            "scan it again"
        )
    return Content(payload_name, payload, {name: [content] for name, content in beside.items()})


def _content(root: Path, path: str, sample_id: int) -> bytes:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise SampleError(f"sample {sample_id}: its file {path} is said to lie outside of {root}")
    try:
        return read_regular(root / path)
    except OSError as error:
        raise SampleError(f"sample {sample_id}, {root / path}: {error.strerror}; restore it or take it away") from error
