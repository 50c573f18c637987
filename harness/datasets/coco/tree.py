"""A real tree in COCO's layout: folders of pictures, and one file that describes them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from harness.datasets import DatasetHandle, Progress
from harness.datasets.coco.annotations import Annotations
from harness.datasets.scan import SampleFile, in_threads, limited
from harness.datasets.tree import RealTree, defect
from harness.errors import ConfigError, DatasetError

_EXPECTED = "expected COCO's layout: train2017/*.jpg and annotations/instances_train2017.json"


@dataclass(frozen=True)
class CocoTree(RealTree):
    """The pictures that an annotation file names, in the order of their paths.

    A sample's label is the class, 1 to 80, of its largest thing, and 0 where it has none. Crowds are left out, boxes
    are cut at the picture's edges, and boxes without an area are dropped; `describe` of the handle counts all three.
    """

    noun: ClassVar[str] = "pictures"
    layout: ClassVar[str] = _EXPECTED.removeprefix("expected ")

    annotations: str | None = None
    """The annotation file, relative to the root; by default annotations/instances_train2017.json, or the only one."""
    without_boxes: str = "keep"
    """Of a picture without boxes: `keep` it, or `leave_out` as torchvision's reference training does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.without_boxes not in ("keep", "leave_out"):
            raise ConfigError(f"dataset.without_boxes={self.without_boxes!r}: expected one of keep, leave_out")

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Read the annotations, judge every picture that was not judged before, and return those that are whole."""
        root = self.folder
        file = self._annotation_file(root)
        progress(f"reading {file.name}", 0, 1)
        content, digest = _read(file)
        known = Annotations.of(content, str(file))
        del content
        progress(f"reading {file.name}", 1, 1)
        names = (file.stem.partition("_")[2], "images")
        folder = next((root / name for name in names if name and (root / name).is_dir()), root)
        whole = [
            (number, image) for number, image in known.images.items() if image.boxes or self.without_boxes == "keep"
        ]
        chosen = limited(sorted(whole, key=lambda one: one[1].file_name), self.limit, self.seed)
        found = in_threads(lambda one: _status(folder / one[1].file_name), chosen)
        numbers: dict[str, int] = {}
        files: list[SampleFile] = []
        missing: dict[str, str] = {}
        for (number, image), status in zip(chosen, found, strict=True):
            path = (folder / image.file_name).relative_to(root).as_posix()
            if status is None:
                missing[path] = "is named by the annotations and is not there"
            else:
                numbers[path] = number
                files.append(SampleFile(path, image.label, status.st_size, status.st_mtime_ns))
        broken = self.verdicts(files, cache, progress, defect)
        wrong = {f"image {number} of {file.name}": reason for number, reason in sorted(known.malformed.items())}
        kept = [one for one in files if one.path not in broken]
        facts = {
            "annotations": str(file),
            **known.counts,
            "without_boxes": sum(not image.boxes for image in known.images.values()),
            "without_boxes_are": "kept" if self.without_boxes == "keep" else "left out",
            "wrongly_described": len(wrong),
            "missing": len(missing),
            "broken": len(broken),
        }
        hashed = (digest, *(f"{one.path}\0{one.size}\0{one.mtime_ns}\n" for one in kept))
        columns = known.columns(numbers[one.path] for one in kept)
        return self.handle(kept, wrong | missing | broken, facts, hashed, columns)

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


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(
            f"dataset.root: {path} cannot be looked up ({error.strerror}); give this user leave to read its folder"
        ) from error
    return status if stat.S_ISREG(status.st_mode) else None
