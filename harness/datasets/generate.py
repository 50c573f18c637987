"""Makes the tree of a recipe in the cache, with all cores, once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.datasets.any_recipe import AnyRecipe
from harness.datasets.cache import building, check_room, only_builder, storage_errors
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.worker import write_file
from harness.errors import DatasetError
from harness.testbed.process import dying_with_parent, end_group

if TYPE_CHECKING:
    from loaders.base import Samples

__all__ = ["generate"]

_MOST_WORKERS: Final = 32
_LEAST_SHARE_BYTES: Final = 100_000
"""Bytes below which a further process costs more than it brings."""
_SLACK: Final = 1.02
"""Of needed bytes: encoded sizes miss the wanted ones by a little."""
_BLOCK: Final = 4096


def generate(name: str, recipe: AnyRecipe, cache: Path, progress: Progress) -> DatasetHandle:
    """Return the dataset of a recipe, from the cache if it is there whole, else made now.

    Raises DatasetError when the cache cannot be written or lacks room.
    """
    target = cache / "datasets" / f"{name}-{recipe.key()}"
    with only_builder(target, progress):
        handle = _stored(name, target, recipe)
        if handle is None:
            needed = _needed_bytes(recipe)
            check_room(target.parent, needed)
            with building(target) as partial, storage_errors(partial, needed):
                _make(name, recipe, partial, progress, needed)
            handle = _stored(name, target, recipe)
    if handle is None:
        raise DatasetError(f"{target}: changed while it was made; let nothing else write there")
    return handle


def _stored(name: str, target: Path, recipe: AnyRecipe) -> DatasetHandle | None:
    """Return the dataset if it is there and its files have the sizes that they were written with."""
    from loaders.base import Samples

    tree = target / "tree"
    try:
        made: dict[str, Any] = json.loads((target / "dataset.json").read_text())
        samples = Samples.load(target / "samples.parquet").at(tree)
        files: dict[str, int] = json.loads((target / "files.json").read_text())
        whole = all((tree / path).stat().st_size == size for path, size in files.items())
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    if not whole or made.get("recipe") != asdict(recipe):
        return None
    return DatasetHandle(name, samples, (), str(made["content_hash"]), _description(recipe, samples))


def _description(recipe: AnyRecipe, samples: Samples) -> dict[str, Any]:
    low, middle, high = (float(q) / 1000 for q in np.quantile(samples.sizes, (0.05, 0.5, 0.95)))
    return {
        "made_by": "harness.datasets.generate",
        **asdict(recipe),
        **recipe.describe(),
        "root": str(samples.root),
        "bytes": int(samples.sizes.sum()),
        "mean_kb": round(float(samples.sizes.mean()) / 1000, 1),
        "median_kb": round(middle, 1),
        "p5_kb": round(low, 1),
        "p95_kb": round(high, 1),
    }


def _needed_bytes(recipe: AnyRecipe) -> int:
    return int(recipe.sizes.sum() * _SLACK) + recipe.samples * _BLOCK


def _make(name: str, recipe: AnyRecipe, folder: Path, progress: Progress, needed: int) -> None:
    from loaders.base import Samples

    tree = folder / "tree"
    tree.mkdir()
    sizes = np.zeros(recipe.samples, np.int64)
    digests = [""] * recipe.samples
    files: dict[str, int] = {}
    what = f"making {name}"
    progress(what, 0, recipe.samples)
    done = 0
    for made in _results(recipe, tree, needed):
        files.update(made["files"])
        sizes[made["id"]], digests[made["id"]] = sum(made["files"].values()), made["sha256"]
        done += 1
        progress(what, done, recipe.samples)
    if not all(digests):
        raise DatasetError(f"{tree}: {recipe.samples - done} of {recipe.samples} {recipe.noun} are missing; run again")
    content = hashlib.sha256()
    for path, digest in zip(recipe.paths(), digests, strict=True):
        content.update(f"{path} {digest}\n".encode())
    for path, data in recipe.common():
        digest_of_file = hashlib.sha256()
        files[path] = write_file(tree / path, data, digest_of_file)
        content.update(f"{path} {digest_of_file.hexdigest()}\n".encode())
    Samples(tree, recipe.paths(), recipe.labels, sizes, recipe.columns()).save(folder / "samples.parquet")
    (folder / "files.json").write_text(json.dumps(files))
    about = {"recipe": asdict(recipe), "content_hash": content.hexdigest()[:16]}
    (folder / "dataset.json").write_text(json.dumps(about, indent=2) + "\n")


def _results(recipe: AnyRecipe, tree: Path, needed: int) -> Iterator[dict[str, Any]]:
    """Run the workers and yield what they say of every sample, in the order in which they finish."""
    cores = len(os.sched_getaffinity(0))
    count = max(1, min(cores, _MOST_WORKERS, recipe.samples, needed // _LEAST_SHARE_BYTES))
    kind = [type(recipe).__module__, type(recipe).__qualname__]
    job = {"kind": kind, "recipe": asdict(recipe), "folder": str(tree), "step": count}
    reader, writer = os.pipe()
    with ExitStack() as stack:
        lines = stack.enter_context(os.fdopen(reader, "rb"))
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for first in range(count):
                worker = subprocess.Popen(
                    dying_with_parent([sys.executable, "-m", "harness.datasets.worker"]),
                    stdin=subprocess.PIPE,
                    stdout=writer,
                    start_new_session=True,  # Ctrl-C is for the parent to handle
                )
                stack.callback(end_group, worker)
                workers.append(worker)
                assert worker.stdin is not None
                worker.stdin.write((json.dumps({**job, "first": first}) + "\n").encode())
                worker.stdin.close()
        finally:
            os.close(writer)
        for line in lines:
            said = json.loads(line)
            if "errno" in said:
                with storage_errors(tree, needed):
                    raise OSError(said["errno"], os.strerror(said["errno"]), said["path"])
            yield said
            for worker in workers:
                if worker.poll() not in {None, 0}:
                    raise _died(worker, recipe.noun)
        for worker in workers:
            if worker.wait():
                raise _died(worker, recipe.noun)


def _died(worker: subprocess.Popen[bytes], noun: str) -> DatasetError:
    status = worker.returncode
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return DatasetError(f"process {worker.pid}, which makes {noun}, {how}; is there enough memory? Run again")
