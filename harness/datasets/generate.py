"""Makes the tree of a recipe in the cache, with all cores, once."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.cache import building, check_room, only_builder, storage_errors
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.recipe import Content, Recipe
from harness.datasets.worker import write_file
from harness.datasets.workers import made_by_workers
from harness.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

    from loaders.base import Samples

__all__ = ["GeneratedDataset", "generate"]

_SLACK: Final = 1.02
"""Of needed bytes: encoded sizes miss the wanted ones by a little."""
_BLOCK: Final = 4096
_TYPICAL: Final = 1000
"""Samples whose mean size stands for that of more."""


class GeneratedDataset(ABC):
    """A dataset that is made from its recipe, once, in the cache."""

    __slots__ = ()
    name: str

    @property
    @abstractmethod
    def recipe(self) -> Recipe:
        """Return what is to be made."""

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Return the dataset, made in `cache` unless it is there; raises DatasetError when it cannot be."""
        return generate(self.name, self.recipe, cache, progress)

    def bytes_to_make(self, cache: Path) -> int:
        """Return about how many bytes `open` would write; 0 where the dataset is in the cache.

        It takes milliseconds, for any number of samples.
        """
        recipe = self.recipe
        if _folder(self.name, recipe, cache).exists():
            return 0
        some: Recipe = replace(recipe, samples=min(_TYPICAL, recipe.samples))
        return round(_needed_bytes(some) * (recipe.samples / some.samples))


def generate(name: str, recipe: Recipe, cache: Path, progress: Progress) -> DatasetHandle:
    """Return the dataset of a recipe, from the cache if it is there whole, else made now.

    Raises DatasetError when the cache cannot be written or lacks room.
    """
    target = _folder(name, recipe, cache)
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


def _folder(name: str, recipe: Recipe, cache: Path) -> Path:
    return cache / "datasets" / f"{name}-{recipe.key()}"


def _stored(name: str, target: Path, recipe: Recipe) -> DatasetHandle | None:
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


def _description(recipe: Recipe, samples: Samples) -> dict[str, Any]:
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


def _needed_bytes(recipe: Recipe) -> int:
    return int(recipe.sizes.sum() * _SLACK) + recipe.samples * _BLOCK


def _make(name: str, recipe: Recipe, folder: Path, progress: Progress, needed: int) -> None:
    from loaders.base import Samples

    tree = folder / "tree"
    tree.mkdir()
    sizes = np.zeros(recipe.samples, np.int64)
    digests = [""] * recipe.samples
    files: dict[str, int] = {}
    what = f"making {name}"
    progress(what, 0, recipe.samples)
    done = 0
    with ThreadPoolExecutor(1, thread_name_prefix="describe") as beside:
        described = beside.submit(_Described.by, recipe)
        for made in made_by_workers(recipe, tree, needed):
            files.update(made["files"])
            sizes[made["id"]], digests[made["id"]] = sum(made["files"].values()), made["sha256"]
            done += 1
            progress(what, done, recipe.samples)
    if not all(digests):
        raise DatasetError(f"{tree}: {recipe.samples - done} of {recipe.samples} {recipe.noun} are missing; run again")
    told = described.result()
    content = hashlib.sha256()
    for path, digest in zip(told.paths, digests, strict=True):
        content.update(f"{path} {digest}\n".encode())
    for path, data in told.common:
        digest_of_file = hashlib.sha256()
        files[path] = write_file(tree / path, data, digest_of_file)
        content.update(f"{path} {digest_of_file.hexdigest()}\n".encode())
    Samples(tree, told.paths, told.labels, sizes, told.columns).save(folder / "samples.parquet")
    (folder / "files.json").write_text(json.dumps(files))
    about = {"recipe": asdict(recipe), "content_hash": content.hexdigest()[:16]}
    (folder / "dataset.json").write_text(json.dumps(about, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class _Described:
    """What a recipe tells of its samples without making them."""

    paths: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    columns: Mapping[str, pa.Array]
    common: tuple[tuple[str, Content], ...]

    @classmethod
    def by(cls, recipe: Recipe) -> _Described:
        return cls(recipe.paths(), recipe.labels, recipe.columns(), tuple(recipe.common()))
