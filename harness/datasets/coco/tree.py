"""A real tree in COCO's layout: folders of pictures, and one file that says what they show."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.datasets.checks import check_tree
from harness.datasets.coco.annotations import Annotations
from harness.datasets.coco.annotations import Image as Described
from harness.datasets.faults import check_faults
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.scan import Listing, SampleFile, limited
from harness.datasets.verdicts import shown, verdicts
from harness.errors import ConfigError, DatasetError

__all__ = ["CocoTree"]

_EXPECTED = "expected COCO's layout: train2017/*.jpg and annotations/instances_train2017.json"


@dataclass(frozen=True, slots=True)
class CocoTree:
    """The pictures that an annotation file names, in the order of their paths.

    A sample's label is the class, 1 to 80, of its largest thing, and 0 where it has none. Crowds are left out, boxes
    are cut at the picture's edges, and boxes without an area are dropped; `describe` of the handle counts all three.
    """

    name: str
    root: str
    on_error: str = "raise"
    """Of a picture that is missing, broken or wrongly described: `raise` names it, `skip` leaves it out, reported."""
    limit: int | None = None
    """Take only so many pictures, chosen by `seed`; only these are judged."""
    seed: int = 0
    annotations: str | None = None
    """The annotation file, relative to the root; by default annotations/instances_train2017.json, or the only one."""
    without_boxes: str = "keep"
    """Of a picture without boxes: `keep` it, or `leave_out` as torchvision's reference training does."""

    def __post_init__(self) -> None:
        check_tree(self.name, self.root, self.on_error, self.limit, expected=_EXPECTED)
        if self.without_boxes not in ("keep", "leave_out"):
            raise ConfigError(f"dataset.without_boxes={self.without_boxes!r}: expected one of keep, leave_out")

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Read the annotations, judge every picture that was not judged before, and return what is whole.

        Raises DatasetError naming dataset.root, or the first picture at fault when on_error is `raise`.
        """
        from loaders.base import Samples

        root = Path(self.root).expanduser().absolute()
        file = self._annotation_file(root)
        progress(f"reading {file.name}", 0, 1)
        content, digest = _read(file)
        known = Annotations.of(content, str(file))
        del content
        progress(f"reading {file.name}", 1, 1)
        folder = _image_folder(root, file)
        chosen, empty = self._chosen(known)
        listing, missing = _found(root, folder, chosen)
        broken = verdicts(listing, cache, f"checking {self.name}", progress)
        problems = {f"image {number} of {file.name}": reason for number, reason in sorted(known.malformed.items())}
        problems |= {shown(path): "is named by the annotations and is not there" for path in missing}
        problems |= {shown(listing.files[at].path): broken[at] for at in sorted(broken)}
        kept = [one for at, one in enumerate(listing.files) if at not in broken]
        check_faults(root, problems, kept=len(kept), noun="pictures", on_error=self.on_error)
        if not kept:
            raise DatasetError(f"dataset.root={root}: {file.name} names no picture to take; no sample is left")
        by_path = {_path(folder, root, image): number for number, image in chosen.items()}
        samples = Samples(
            root,
            tuple(one.path for one in kept),
            np.array([one.label for one in kept], np.int64),
            np.array([one.size for one in kept], np.int64),
            known.columns([by_path[one.path] for one in kept]),
        )
        told = {
            "root": str(root),
            "annotations": str(file),
            "on_error": self.on_error,
            "samples": len(samples),
            "bytes": int(samples.sizes.sum()),
            "mean_kb": round(float(samples.sizes.mean()) / 1000, 1),
            **known.counts,
            "without_boxes": empty,
            "without_boxes_are": "kept" if self.without_boxes == "keep" else "left out",
            "wrongly_described": len(known.malformed),
            "missing": len(missing),
            "broken": len(broken),
        }
        return DatasetHandle(self.name, samples, tuple(problems), _content_hash(kept, digest), told)

    def _annotation_file(self, root: Path) -> Path:
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise DatasetError(f"dataset.root={root}: {what}; {_EXPECTED}")
        if self.annotations is not None:
            return root / self.annotations
        usual = root / "annotations" / "instances_train2017.json"
        found = sorted(usual.parent.glob("instances_*.json"))
        if usual in found or not found:
            return usual
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise DatasetError(f"dataset.root={root}: has {names}; choose one with dataset.tree.annotations")
        return found[0]

    def _chosen(self, known: Annotations) -> tuple[dict[int, Described], int]:
        """Return the pictures to take, by number and in the order of their names, and how many of all have no boxes."""
        empty = sum(not image.boxes for image in known.images.values())
        images = [(n, image) for n, image in known.images.items() if image.boxes or self.without_boxes == "keep"]
        images.sort(key=lambda one: one[1].file_name)
        return dict(limited(images, self.limit, self.seed)), empty


def _read(file: Path) -> tuple[Any, str]:
    """Return the content of a JSON file, and the hash of its bytes."""
    try:
        data = file.read_bytes()
        return json.loads(data), hashlib.sha256(data).hexdigest()
    except OSError as error:
        raise DatasetError(
            f"{file}: {error.strerror}; {_EXPECTED}, or name the file with dataset.tree.annotations"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file}: is not JSON, or cut short ({error}); get it again") from error


def _image_folder(root: Path, file: Path) -> Path:
    names = (file.stem.partition("_")[2], "images")
    return next((root / name for name in names if name and (root / name).is_dir()), root)


def _path(folder: Path, root: Path, image: Described) -> str:
    return (folder / image.file_name).relative_to(root).as_posix()


def _found(root: Path, folder: Path, images: Mapping[int, Described]) -> tuple[Listing, list[str]]:
    """Return the files of the pictures, and the paths of those that are not there, in the order of the pictures."""
    files, missing = [], []
    present = _present(folder, {os.path.dirname(image.file_name) for image in images.values()})  # noqa: PTH120
    for image in images.values():
        path = _path(folder, root, image)
        status = present.get(image.file_name)
        if status is None:
            missing.append(path)
        else:
            files.append(SampleFile(path, image.label, status.st_size, status.st_mtime_ns))
    return Listing(root, tuple(files), (), 0), missing


def _present(folder: Path, inside: Iterable[str]) -> dict[str, os.stat_result]:
    """Return the status of every file of these folders, by name relative to `folder`; one listing, no look-ups."""
    found: dict[str, os.stat_result] = {}
    for name in inside:
        try:
            with os.scandir(folder / name) as entries:
                found |= {f"{name}/{e.name}".lstrip("/"): e.stat() for e in entries if e.is_file()}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DatasetError(
                f"dataset.root: {folder / name} cannot be listed ({error.strerror}); give this user leave to read it"
            ) from error
    return found


def _content_hash(files: Sequence[SampleFile], annotations: str) -> str:
    digest = hashlib.sha256(annotations.encode())
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
