"""COCO: images with the boxes, classes and further annotations that a JSON file gives them.

Feature names: TensorFlow Object Detection API, research/object_detection/dataset_tools/create_coco_tf_record.py.
Format of the file: cocodataset.org, "Data format".
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loaders.errors import LoaderConfigError
from loaders.records.shards.classes import Classes, assign_labels
from loaders.records.shards.convert.folders import read_image
from loaders.records.shards.convert.listing import Broken, Item, SampleListing, make_item, source_folder, try_item
from loaders.records.shards.example import Feature

if TYPE_CHECKING:  # which takes long to import
    import pyarrow as pa


_Entry: TypeAlias = dict[str, Any]
"""An object of the JSON file."""


def coco(
    root: Path,
    annotations: Path | None = None,
    images: Path | None = None,
    *,
    classes: Classes | None = None,
    broken: list[Broken] | None = None,
) -> SampleListing:
    """List the images of a COCO annotation file, by default root/annotations/instances_*.json.

    The images are looked for in `images`, by default root/NAME for instances_NAME.json, root/images or root. A
    sample's label is the class of its largest box, as a place in the sorted list of category ids or as given, or -1
    without boxes. Images that are not there are added to `broken`, if that is a list.

    Raises LoaderConfigError naming the file, image or annotation that is missing or malformed.
    """
    source_folder(root)
    annotations = annotations or _only_annotations(root)
    content = _load(annotations)
    folder = images or _image_folder(root, annotations)
    try:
        categories = {int(entry["id"]): str(entry["name"]) for entry in content.get("categories", [])}
        names = _told_apart(categories)
        by_name = assign_labels([names[category] for category in sorted(categories)], classes, annotations)
        labels = {category: by_name[name] for category, name in names.items()}
        by_image: dict[int, list[_Entry]] = defaultdict(list)
        for entry in content.get("annotations", []):
            by_image[int(entry["image_id"])].append(entry)
        pictures = sorted(content["images"], key=lambda picture: str(picture["file_name"]))
        known = {int(picture["id"]) for picture in pictures}
        if unknown := by_image.keys() - known:
            raise LoaderConfigError(f"{annotations}: annotations of image {min(unknown)}, which is not in `images`")
        if len(known) != len(pictures):
            raise LoaderConfigError(f"{annotations}: two images have the same id")
        items, kept = [], []
        for picture in pictures:
            entries = by_image.get(int(picture["id"]), [])
            item = try_item(
                str(picture["file_name"]), partial(_item, folder, picture, entries, labels, categories), broken
            )
            if item is not None:
                items.append(item)
                kept.append(picture)
        columns = _columns(kept, by_image)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoaderConfigError(
            f"{annotations}: not as COCO's format asks ({type(error).__name__}: {error}); "
            "expected lists `images`, `annotations` and `categories`"
        ) from error
    if not pictures:
        raise LoaderConfigError(f"{annotations}: no images in it")
    return SampleListing(
        "coco",
        folder,
        tuple(items),
        "image/class/label",
        "image/filename",
        read_image,
        by_name,
        columns=columns,
        broken=tuple(broken or ()),
    )


def _told_apart(categories: Mapping[int, str]) -> dict[int, str]:
    """Return the categories' names, with the id behind those that several have."""
    often = Counter(categories.values())
    return {category: name if often[name] == 1 else f"{name} ({category})" for category, name in categories.items()}


def _only_annotations(root: Path) -> Path:
    found = sorted((root / "annotations").glob("instances_*.json"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise LoaderConfigError(
            f"{root}: expected one annotations/instances_*.json, found {names}; choose with --annotations FILE"
        )
    return found[0]


def _image_folder(root: Path, annotations: Path) -> Path:
    # instances_NAME.json, but person_keypoints_NAME.json too.
    names = (annotations.stem.partition("_")[2], annotations.stem.rpartition("_")[2], "images")
    return next((root / name for name in names if name and (root / name).is_dir()), root)


def _load(path: Path) -> _Entry:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise LoaderConfigError(f"{path}: {error.strerror}; name the file with --annotations FILE") from error
    except (ValueError, RecursionError) as error:
        raise LoaderConfigError(f"{path}: not JSON, or cut short ({error}); get it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise LoaderConfigError(f"{path}: no list `images` in it; expected COCO's format")
    return content


def _item(
    folder: Path,
    picture: _Entry,
    entries: list[_Entry],
    labels: dict[int, int],
    categories: dict[int, str],
) -> Item:
    name = str(picture["file_name"])
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"image {picture['id']} is said to be {name}, out of its folder")
    path = folder / name
    if not path.is_file():
        raise LoaderConfigError(f"{path}: no such image, but the annotations name it; restore it, or name its folder")
    width, height = int(picture["width"]), int(picture["height"])
    if width < 1 or height < 1:
        raise ValueError(f"image {picture['id']} is {width} x {height} pixels")
    boxed = [entry for entry in entries if "bbox" in entry]
    boxes = [[float(value) for value in entry["bbox"]] for entry in boxed]
    if any(len(box) != 4 for box in boxes):
        raise ValueError(f"a box of image {picture['id']} has not four numbers")
    classes = [int(entry["category_id"]) for entry in boxed]
    if missing := set(classes) - set(labels):
        raise ValueError(f"category {min(missing)} of image {picture['id']} is not in `categories`")
    sizes = [box[2] * box[3] for box in boxes]
    label = labels[classes[sizes.index(max(sizes))]] if boxes else -1
    features: dict[str, Feature] = {
        "image/height": [height],
        "image/width": [width],
        "image/source_id": [str(picture["id"]).encode()],
        "image/object/bbox/xmin": [box[0] / width for box in boxes],
        "image/object/bbox/xmax": [(box[0] + box[2]) / width for box in boxes],
        "image/object/bbox/ymin": [box[1] / height for box in boxes],
        "image/object/bbox/ymax": [(box[1] + box[3]) / height for box in boxes],
        "image/object/class/label": [labels[category] for category in classes],
        "image/object/class/text": [categories[category].encode() for category in classes],
        "image/object/is_crowd": [int(entry.get("iscrowd", 0)) for entry in boxed],
        "image/object/area": [float(entry.get("area", size)) for entry, size in zip(boxed, sizes, strict=True)],
        # All of it, with segments, key points and captions, as it was.
        "image/annotations": [json.dumps(entries, separators=(",", ":")).encode()],
    }
    return replace(make_item(name, path, label), features=features)


def _columns(pictures: list[_Entry], by_image: Mapping[int, list[_Entry]]) -> dict[str, pa.Array]:
    """Return what detection learns from: boxes (x, y, width, height) and outlines in pixels, and COCO's categories.

    As in torchvision's reference training, crowds are left out, boxes are cut at the picture's edges, and left out
    without an area.
    """
    boxes, categories, segments = [], [], []
    for picture in pictures:
        things = [
            (_cut(entry["bbox"], int(picture["width"]), int(picture["height"])), entry)
            for entry in by_image.get(int(picture["id"]), [])
            if "bbox" in entry and not entry.get("iscrowd", 0)
        ]
        kept = [(box, entry) for box, entry in things if box[2] > 0 and box[3] > 0]
        boxes.append([box for box, _ in kept])
        categories.append([int(entry["category_id"]) for _, entry in kept])
        outlines = [entry.get("segmentation") for _, entry in kept]
        # Run lengths, which single things may have too, are no outlines.
        segments.append([each if isinstance(each, list) else [] for each in outlines])
    import pyarrow as pa

    floats = pa.list_(pa.float32())
    return {
        "boxes": pa.array(boxes, pa.list_(floats)),
        "categories": pa.array(categories, pa.list_(pa.int64())),
        "segments": pa.array(segments, pa.list_(pa.list_(floats))),
    }


def _cut(box: list[float], width: int, height: int) -> list[float]:
    left, right = (min(max(float(x), 0.0), width) for x in (box[0], box[0] + box[2]))
    top, bottom = (min(max(float(y), 0.0), height) for y in (box[1], box[1] + box[3]))
    return [left, top, right - left, bottom - top]
