"""One of the processes that make the samples of a dataset; started by `generate`, which it dies with.

Its job is one JSON line on stdin, its results are one JSON line a sample on stdout, which all workers share: each
line is written at once and is shorter than a pipe's atomic unit.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.datasets.any_recipe import AnyRecipe, Content

__all__ = ["main", "write_file"]


def main() -> int:
    """Make every `step`-th sample from `first` on; 1 when a file could not be written."""
    job = json.loads(sys.stdin.readline())
    module, name = job["kind"]
    recipe: AnyRecipe = getattr(importlib.import_module(module), name)(**job["recipe"])
    tree = Path(job["folder"])
    for sample_id in range(job["first"], recipe.samples, job["step"]):
        digest, files = hashlib.sha256(), {}
        for relative, content in recipe.files(sample_id):
            path = tree / relative
            try:
                files[relative] = write_file(path, content, digest)
            except OSError as error:
                _say({"errno": error.errno, "path": str(path)})
                return 1
        _say({"id": sample_id, "files": files, "sha256": digest.hexdigest()})
    return 0


def write_file(path: Path, content: Content | Iterable[Content], digest: Any) -> int:
    """Write a file, its folders too, and add its bytes to the digest; return its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with path.open("wb", buffering=0) as file:
        for part in (content,) if isinstance(content, Content) else content:
            view = memoryview(part).cast("B")
            digest.update(view)
            size += len(view)
            while len(view):  # a single write stops at 2 GiB
                view = view[file.write(view) :]
    return size


def _say(what: dict[str, Any]) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
