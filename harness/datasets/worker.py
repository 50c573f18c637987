"""One of the processes that make the samples of a dataset; started by `generate`, which it dies with.

Its job is one argument in JSON. Which samples it makes it reads from stdin, a file that all workers share: what one has
read, no other reads. Its results are one JSON line a sample on stdout, which they share too: each line is written
at once and is shorter than a pipe's atomic unit.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.datasets.recipe import Content, Recipe

__all__ = ["ID", "main", "write_file"]

ID: Final = np.dtype("<u8")
"""How the number of the first of some samples in a row stands on stdin."""


def main() -> int:
    """Make samples until none is left; 1 when a file could not be written."""
    job = json.loads(sys.argv[1])
    module, name = job["kind"]
    recipe: Recipe = getattr(importlib.import_module(module), name)(**job["recipe"])
    tree = Path(job["folder"])
    for sample_id in _taken(recipe):
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


def _taken(recipe: Recipe) -> Iterator[int]:
    while read := os.read(sys.stdin.fileno(), ID.itemsize):
        first = int.from_bytes(read, "little")
        yield from range(first, min(first + recipe.together, recipe.samples))


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
