"""Generated datasets: each is a recipe of a few values, made in the cache with all cores, once."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets import DatasetHandle, Progress
from harness.datasets.cache import building, only_builder, short_hash, storage_errors
from harness.datasets.scan import in_threads
from harness.datasets.worker import Content, Files, make_files, write_file
from harness.errors import DatasetError
from harness.system.disk import check_room
from harness.system.values import check_count, check_name

if TYPE_CHECKING:  # the processes that make samples import neither
    import pyarrow as pa

    from loaders.base import Samples


_SLACK: Final = 1.02
"""Factor on the needed bytes: encoded sizes differ a little from the wanted ones."""
_BLOCK: Final = 4096
_EDGE: Final = 1e-9
"""Probability at which distributions are cut off."""
_TYPICAL: Final = 1000
"""Samples by which the mean size of a larger set is estimated."""


@dataclass(frozen=True)
class GeneratedDataset(ABC):
    """A dataset that is made from its fields, which are plain numbers and text: equal ones make equal bytes.

    The modules of subclasses import nothing that is slow to import, as torch is: every process that makes samples
    imports them.
    """

    version: ClassVar[int]
    """Raised with every change that alters a file, so that no older tree is taken for a new one."""

    name: str
    samples: int
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_name("dataset.name", self.name)
        check_count("dataset.samples", self.samples)
        check_count("dataset.seed", self.seed, minimum=0)

    @abstractmethod
    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every sample of a set of `count`, all its files together, shape (count,)."""

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the class of every sample, shape (samples,); 0 where there are none."""
        return np.zeros(self.samples, np.int64)

    @abstractmethod
    def path(self, sample_id: int) -> str:
        """Return the path of a sample's main file, relative to the tree."""

    @abstractmethod
    def files(self, sample_id: int) -> Iterator[tuple[str, Content | Iterable[Content]]]:
        """Yield path and content of one sample's files, the main one among them.

        A content in parts is written part by part; neither it nor a file before it is kept.
        """

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Wanted bytes of every sample, shape (samples,)."""
        return self.sizes_of(self.samples)

    def paths(self) -> tuple[str, ...]:
        """Return the path of every sample's main file."""
        return tuple(map(self.path, range(self.samples)))

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield path and content of the files that belong to no single sample."""
        yield from ()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return what else is known of each sample, by name."""
        return {}

    def key(self) -> str:
        """Return 16 hex digits that differ between recipes, their kinds and their versions."""
        text = json.dumps({"kind": type(self).__qualname__, "version": self.version, **asdict(self)}, sort_keys=True)
        return short_hash([text])

    def bytes_to_make(self, cache: Path) -> int:
        """Return about how many bytes `open` would write; 0 where the dataset is in the cache.

        It takes milliseconds, for any number of samples.
        """
        return 0 if self._folder(cache).exists() else self._needed_bytes()

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Return the dataset, from the cache if it is there whole, else made now.

        Raises DiskError when the cache cannot be written or lacks room, DatasetError when a process dies.
        """
        target = self._folder(cache)
        with only_builder(target, progress):
            handle = self._stored(target, progress)
            if handle is None:
                needed = self._needed_bytes()
                check_room("cache_dir", target.parent, needed)
                with building(target) as partial, storage_errors(partial, needed):
                    self._make(partial, progress, needed)
                handle = self._stored(target)
        if handle is None:
            raise DatasetError(f"{target}: changed while it was made; let nothing else write there")
        return handle

    def _folder(self, cache: Path) -> Path:
        return cache / "datasets" / f"{self.name}-{self.key()}"

    def _needed_bytes(self) -> int:
        some = self.sizes_of(min(self.samples, _TYPICAL))
        return round(self.samples * (float(some.mean()) * _SLACK + _BLOCK))

    def _stored(self, target: Path, progress: Progress | None = None) -> DatasetHandle | None:
        """Return the dataset if it is there and its files have the sizes that they were written with.

        With `progress` every file is read too, and has to have the bytes that it was written with.
        """
        from loaders.base import Samples

        def has_its_bytes(path: str) -> bool:
            size, digest = files[path]
            if (target / path).stat().st_size != size:
                return False
            if progress is None:
                return True
            with (target / path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest

        what = f"checking {self.name}"
        try:
            made: dict[str, object] = json.loads((target / "dataset.json").read_text())
            files: Files = json.loads((target / "files.json").read_text())
            if made.get("recipe") != asdict(self):
                return None
            found = in_threads(
                has_its_bytes, files, lambda done: None if progress is None else progress(what, done, len(files))
            )
            if all(found):
                samples = Samples.load(target / "samples.parquet").at(target / "tree")
                return DatasetHandle(self.name, samples, (), str(made["content_hash"]), self._description(samples))
            if progress is not None:
                progress(f"files of {self.name} have changed in the cache: making it again", 1, 1)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # not made yet, or not whole
        return None

    def _description(self, samples: Samples) -> dict[str, object]:
        spread = {"p5_kb": 0.05, "median_kb": 0.5, "p95_kb": 0.95}
        return {
            "made_by": "harness.datasets.generate",
            **asdict(self),
            "version": self.version,
            "root": str(samples.root),
            "bytes": int(samples.sizes.sum()),
            "mean_kb": round(float(samples.sizes.mean()) / 1000, 1),
            **{name: round(float(np.quantile(samples.sizes, q)) / 1000, 1) for name, q in spread.items()},
        }

    def _make(self, folder: Path, progress: Progress, needed: int) -> None:
        from loaders.base import Samples

        tree = folder / "tree"
        tree.mkdir()
        sizes = np.zeros(self.samples, np.int64)
        files: Files = {}
        what = f"making {self.name}"
        progress(what, 0, self.samples)
        with ThreadPoolExecutor(1, thread_name_prefix="describe") as beside:
            described = beside.submit(lambda: (self.paths(), self.labels(), self.columns(), tuple(self.common())))
            for sample_id, made in make_files(self, tree, needed):
                files |= made
                sizes[sample_id] = sum(size for size, _ in made.values())
                progress(what, sample_id + 1, self.samples)
        paths, labels, columns, common = described.result()
        files |= {path: write_file(tree / path, content) for path, content in common}
        content = short_hash(f"{path} {digest}\n" for path, (_, digest) in sorted(files.items()))
        table = folder / "samples.parquet"
        Samples(tree, paths, labels, sizes, columns).save(table)
        known = {f"tree/{path}": about for path, about in files.items()}
        known[table.name] = (table.stat().st_size, hashlib.sha256(table.read_bytes()).hexdigest())
        (folder / "files.json").write_text(json.dumps(known))
        about = {"recipe": asdict(self), "content_hash": content}
        (folder / "dataset.json").write_text(json.dumps(about, indent=2) + "\n")


def quantiles(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Draw one value from each of `count` equally likely parts of 0 to 1, in random order; shape (count,).

    Independent draws would have a mean that is wrong by several per cent.
    """
    return np.clip((rng.permutation(count) + rng.random(count)) / count, _EDGE, 1 - _EDGE)


def normal_deviates(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Draw values of the standard normal distribution in the same way; shape (count,)."""
    return np.array([NormalDist().inv_cdf(q) for q in quantiles(rng, count).tolist()])


def draw_log_normal(rng: np.random.Generator, count: int, mean: float, sigma: float) -> npt.NDArray[np.float64]:
    """Draw values of a log-normal distribution in the same way; `sigma` is the deviation of ln(value)."""
    values: npt.NDArray[np.float64] = np.exp(math.log(mean) - sigma**2 / 2 + sigma * normal_deviates(rng, count))
    return values


def draw_ratio(rng: np.random.Generator, shares: Mapping[float, float], sigma: float) -> float:
    """Draw a picture's width / height: one of the usual ones by their shares, and ln(ratio) off by `sigma`."""
    return float(rng.choice(list(shares), p=list(shares.values()))) * float(rng.lognormal(0.0, sigma))
