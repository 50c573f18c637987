"""One of the processes that make the pictures of a dataset; started by `generate`, which it dies with.

Its job is one JSON line on stdin, its results are one JSON line a file on stdout, which all workers share: each
line is written at once and is shorter than a pipe's atomic unit.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.datasets.recipe import Recipe

__all__ = ["main"]


def main() -> int:
    """Make every `step`-th picture from `first` on; 1 when a file could not be written."""
    job = json.loads(sys.stdin.readline())
    recipe, folder = Recipe(**job["recipe"]), Path(job["folder"])
    paths = recipe.paths()
    for sample_id in range(job["first"], recipe.samples, job["step"]):
        image = recipe.image(sample_id)
        path = folder / paths[sample_id]
        try:
            path.write_bytes(image)
        except OSError as error:
            _say({"errno": error.errno, "path": str(path)})
            return 1
        _say({"id": sample_id, "size": len(image), "sha256": hashlib.sha256(image).hexdigest()})
    return 0


def _say(what: dict[str, Any]) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
