"""Which label a class has: kept beside the shards, so that the splits of a dataset agree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaders.arguments import as_whole
from loaders.errors import LoaderConfigError, ShardError
from loaders.records.shards.index import MANIFEST, load_manifest, write_atomically

CLASSES = "classes.json"
"""The file in a shard folder: one JSON object, from the name of a class to its label."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The labels of classes by their names, as a file has them."""

    path: Path
    labels: Mapping[str, int]


def load_classes(path: Path) -> Classes:
    """Read a file as `save_classes` writes it, a JSON list of names, or what a shard folder has of the two.

    Raises LoaderConfigError naming the file and what is wrong with it.
    """
    if path.is_dir():
        path = path / CLASSES if (path / CLASSES).is_file() else path / MANIFEST
    try:
        content: object = json.loads(path.read_text())
    except OSError as error:
        raise LoaderConfigError(f"{path}: {error.strerror}; name the {CLASSES} of another split") from error
    except ValueError as error:
        raise LoaderConfigError(f"{path}: not JSON ({error}); expected an object from class names to labels") from error
    if path.name == MANIFEST and isinstance(content, dict):
        content = content.get("classes")
    if isinstance(content, list):
        content = {name: label for label, name in enumerate(content)}
    if not isinstance(content, dict) or not content or None in map(as_whole, content.values()):
        raise LoaderConfigError(f"{path}: expected a JSON object from class names to labels, whole numbers from 0 on")
    return Classes(path, {str(name): label for name, label in content.items()})


def save_classes(folder: Path, labels: Mapping[str, int]) -> None:
    """Write the labels beside the shards of a folder."""
    with write_atomically(folder / CLASSES) as file:
        file.write(json.dumps(labels, indent=1).encode() + b"\n")


def assign_labels(found: Sequence[str], given: Classes | None, root: Path) -> dict[str, int]:
    """Return the labels of classes: those that are given, else the place of each class in the source.

    Raises LoaderConfigError naming a class that the given ones lack.
    """
    if given is None:
        return {name: label for label, name in enumerate(found)}
    if not found:
        raise LoaderConfigError(
            f"{root}: its samples have no classes, and {given.path} has labels for them; leave it out"
        )
    if missing := [name for name in found if name not in given.labels]:
        raise LoaderConfigError(
            f"{root}: class {missing[0]} is not among the {len(given.labels)} of {given.path}; add it there with a "
            "label, or take its samples away"
        )
    return dict(given.labels)


def check_splits(labels: Mapping[str, int], out: Path, kind: str, root: Path) -> None:
    """Refuse labels that disagree with those of a shard folder beside `out` that shares classes with them.

    Raises LoaderConfigError naming the class, the folder and the way to take its labels.
    """
    for manifest in sorted(out.parent.glob(f"*/{MANIFEST}")):
        folder = manifest.parent
        try:
            content = load_manifest(folder)
            if (
                folder == out
                or folder.name.startswith(".")
                or content.get("kind") != kind
                or not content.get("classes")
            ):
                continue
            theirs = load_classes(folder).labels
        except (ShardError, LoaderConfigError):
            continue  # not a shard folder that could be a split of the same dataset
        if not labels.keys() & theirs.keys():
            continue
        names = {label: name for name, label in theirs.items()}
        for name, label in labels.items():
            if name in theirs and theirs[name] == label:
                continue
            if name in theirs or label in names:
                other = f"it has {theirs[name]}" if name in theirs else f"that is {names[label]}'s"
                raise LoaderConfigError(
                    f"{root}: class {name} would get label {label}, and in {folder} {other}; take its labels "
                    f"with --classes {folder}, or use --own-classes if the two are not splits of one dataset"
                )
