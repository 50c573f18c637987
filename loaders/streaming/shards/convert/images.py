"""Trees of images: root/class/name.jpg, or files without classes in the root."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from loaders.errors import LoaderConfigError, SampleError
from loaders.streaming.shards.classes import Classes, labels_of
from loaders.streaming.shards.convert.source import (
    Broken,
    Content,
    Item,
    Source,
    check_regular,
    classes_of,
    files_below,
    listed_or_broken,
    read_file,
)

__all__ = ["IMAGE_SUFFIXES", "check_image", "image_tree", "read_image"]

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
    for name, path in files_below(root):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            found.append((name, path))
        else:
            ignored += 1
    if not found:
        raise LoaderConfigError(f"{root}: no image below it ({', '.join(IMAGE_SUFFIXES)}); expected class/name.jpg")
    labels = labels_of(classes_of(root, [name for name, _ in found]), classes, root)
    items = []
    for name, path in found:
        label = labels.get(name.partition("/")[0], -1)
        item = listed_or_broken(name, partial(listed, name, path, label), broken)
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


def listed(name: str, path: Path, label: int) -> Item:
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
