"""Generated datasets: each is a recipe of a few values, made in the cache with all cores, once."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from harness.datasets.cache import building, check_room, only_builder, storage_errors
from harness.datasets.checks import check_count, check_name
from harness.datasets.handle import DatasetHandle, Progress
from harness.datasets.scan import in_threads
from harness.errors import DatasetError

if TYPE_CHECKING:  # the processes that make samples import neither
    import pyarrow as pa

    from loaders.base import Samples

__all__ = ["Content", "GeneratedDataset", "write_file"]

Content = bytes | bytearray | memoryview
"""Bytes of a file, or of a part of it."""

_SLACK: Final = 1.02
"""Factor on the needed bytes: encoded sizes differ a little from the wanted ones."""
_BLOCK: Final = 4096
_TYPICAL: Final = 1000
"""Samples from whose mean size that of more is estimated."""


@dataclass(frozen=True)
class GeneratedDataset(ABC):
    """A dataset that is made from its fields, which are plain numbers and text: equal ones make equal bytes.

    The modules of subclasses import nothing that is slow to import, as torch is: every process that makes samples
    imports them.
    """

    noun: ClassVar[str]
    """What its samples are called in messages: pictures, recordings, volumes."""
    version: ClassVar[int]
    """Raised with every change that alters a file, so that no older tree is taken for a new one."""

    name: str
    samples: int
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_count("samples", self.samples)
        check_count("seed", self.seed, least=0)

    @abstractmethod
    def sizes_of(self, count: int) -> npt.NDArray[np.int64]:
        """Return the wanted bytes of every sample of a set of `count`, all its files together, shape (count,)."""

    @abstractmethod
    def labels(self) -> npt.NDArray[np.int64]:
        """Return the class of every sample, shape (samples,)."""

    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """Return the path of every sample's main file, relative to the tree."""

    @abstractmethod
    def files(self, sample_id: int) -> Iterator[tuple[str, Content | Iterable[Content]]]:
        """Yield path and content of one sample's files, the main one among them.

        A content in parts is written part by part; neither it nor a file before it is kept.
        """

    def common(self) -> Iterator[tuple[str, Content]]:
        """Yield path and content of the files that belong to no single sample."""
        yield from ()

    def columns(self) -> Mapping[str, pa.Array]:
        """Return what else is known of each sample, by name."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return what provenance.json says of the samples beside the fields; plain values."""
        return {}

    def key(self) -> str:
        """Return 16 hex digits that differ between recipes, their kinds and their versions."""
        text = json.dumps({"kind": type(self).__qualname__, "version": self.version, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def bytes_to_make(self, cache: Path) -> int:
        """Return about how many bytes `open` would write; 0 where the dataset is in the cache.

        It takes milliseconds, for any number of samples.
        """
        return 0 if self._folder(cache).exists() else self._needed_bytes()

    def open(self, cache: Path, progress: Progress) -> DatasetHandle:
        """Return the dataset, from the cache if it is there whole, else made now.

        Raises DatasetError when the cache cannot be written or lacks room.
        """
        target = self._folder(cache)
        with only_builder(target, progress):
            handle = self._stored(target, progress)
            if handle is None:
                needed = self._needed_bytes()
                check_room(target.parent, needed)
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

        tree = target / "tree"
        try:
            made: dict[str, Any] = json.loads((target / "dataset.json").read_text())
            # Caches of older versions have no digest of the samples' table.
            whole = progress is None or made.get("samples_digest") in (None, _digest(target, ["samples.parquet"]))
            if whole:
                samples = Samples.load(target / "samples.parquet").at(tree)
                files: dict[str, int] = json.loads((target / "files.json").read_text())
                whole = all((tree / path).stat().st_size == size for path, size in files.items())
            if whole and progress is not None:
                read = _digest_of_tree(tree, samples, files, f"checking {self.name}", progress)
                whole = read == made["content_hash"]
            if not whole and progress is not None:
                progress(f"files of {self.name} have changed in the cache: making it again", 1, 1)
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        if not whole or made.get("recipe") != asdict(self):
            return None
        return DatasetHandle(self.name, samples, (), str(made["content_hash"]), self._description(samples))

    def _description(self, samples: Samples) -> dict[str, Any]:
        low, middle, high = (round(float(q) / 1000, 1) for q in np.quantile(samples.sizes, (0.05, 0.5, 0.95)))
        return {
            "made_by": "harness.datasets.generate",
            **asdict(self),
            "version": self.version,
            **self.facts(),
            "root": str(samples.root),
            "bytes": int(samples.sizes.sum()),
            "mean_kb": round(float(samples.sizes.mean()) / 1000, 1),
            "median_kb": middle,
            "p5_kb": low,
            "p95_kb": high,
        }

    def _make(self, folder: Path, progress: Progress, needed: int) -> None:
        from harness.datasets.worker import made_by_workers
        from loaders.base import Samples

        tree = folder / "tree"
        tree.mkdir()
        sizes = np.zeros(self.samples, np.int64)
        digests = [""] * self.samples
        files: dict[str, int] = {}
        what = f"making {self.name}"
        progress(what, 0, self.samples)
        done = 0
        with ThreadPoolExecutor(1, thread_name_prefix="describe") as beside:
            described = beside.submit(
                lambda: (self.paths(), self.labels(), self.columns(), tuple(self.common())),
            )
            for made in made_by_workers(self, tree, needed):
                files.update(made["files"])
                sizes[made["id"]], digests[made["id"]] = sum(made["files"].values()), made["sha256"]
                done += 1
                progress(what, done, self.samples)
        if not all(digests):
            raise DatasetError(f"{tree}: {self.samples - done} of {self.samples} {self.noun} are missing; run again")
        paths, labels, columns, common = described.result()
        contents = list(zip(paths, digests, strict=True))
        for path, data in common:
            digest_of_file = hashlib.sha256()
            files[path] = write_file(tree / path, data, digest_of_file)
            contents.append((path, digest_of_file.hexdigest()))
        Samples(tree, paths, labels, sizes, columns).save(folder / "samples.parquet")
        (folder / "files.json").write_text(json.dumps(files))
        about = {
            "recipe": asdict(self),
            "content_hash": _content_hash(contents),
            "samples_digest": _digest(folder, ["samples.parquet"]),
        }
        (folder / "dataset.json").write_text(json.dumps(about, indent=2) + "\n")


def _digest_of_tree(tree: Path, samples: Samples, files: Iterable[str], what: str, progress: Progress) -> str:
    """Return the content hash of the files of a tree, which are in the order in which each sample's were written."""
    further = [column.to_pylist() for name, column in samples.columns.items() if name.endswith("_path")]
    owner = {path: sample_id for paths in (samples.paths, *further) for sample_id, path in enumerate(paths)}
    own: list[list[str]] = [[] for _ in samples.paths]
    common: list[str] = []
    for path in files:
        (own[owner[path]] if path in owner else common).append(path)
    digests = in_threads(lambda paths: _digest(tree, paths), own, lambda done: progress(what, done, len(own)))
    digests += [_digest(tree, [path]) for path in common]
    return _content_hash(zip((*samples.paths, *common), digests, strict=True))


def _digest(folder: Path, paths: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with (folder / path).open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _content_hash(digests: Iterable[tuple[str, str]]) -> str:
    """Return the content hash of main files with their samples' digests, and of the files that belong to no sample."""
    content = hashlib.sha256()
    for path, digest in digests:
        content.update(f"{path} {digest}\n".encode())
    return content.hexdigest()[:16]


def write_file(path: Path, content: Content | Iterable[Content], digest: Any) -> int:
    """Write a file and its folders, and add its bytes to the digest; return its size in bytes."""
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
