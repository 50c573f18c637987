"""What every loader takes and yields: samples in, batches with sample ids out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import torch


_Value_co = TypeVar("_Value_co", covariant=True)


class ById(Protocol[_Value_co]):
    """Values by sample id: an array or a tuple, or a view of samples that came over a wire."""

    def __getitem__(self, sample_id: int, /) -> _Value_co: ...


class SampleSource(Protocol):
    """The samples that a pipeline reads, by their ids: files of a dataset, or records that came over a wire."""

    @property
    def paths(self) -> ById[str]:
        """Path of each sample, '/' between parts."""
        ...

    @property
    def labels(self) -> ById[int]:
        """Class of each sample."""
        ...

    @property
    def sizes(self) -> ById[int]:
        """Encoded size of each sample in bytes, all its files together."""
        ...

    @property
    def columns(self) -> Mapping[str, Any]:
        """Columns of the dataset by name; each gives an Arrow scalar by sample id."""
        ...

    @property
    def on_disk(self) -> bool:
        """Whether `path` is a file that can be opened."""
        ...

    def path(self, sample_id: int, column: str | None = None) -> Path:
        """Return the file of a sample, or its further file that a column names."""
        ...

    def read(self, sample_id: int, column: str | None = None) -> bytes | memoryview:
        """Return such a file whole; raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Samples:
    """The files of a dataset; a sample's id is its position, 0 to n-1."""

    root: Path
    paths: tuple[str, ...]
    """Relative to root, '/' between parts."""
    labels: npt.NDArray[np.int64]
    """Class of each sample, shape (n,)."""
    sizes: npt.NDArray[np.int64]
    """Encoded size of each sample in bytes, all its files together, shape (n,)."""
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    """Further values of each sample, by name: transcripts, boxes. Where a sample has further files, a column
    whose name ends in `_path` has the path of each, relative to root."""
    listing: tuple[str, ...] = ()
    """Paths of a longer list of files that no epoch reads, as the dataset object of so many files holds them."""

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, sample_id: int, column: str | None = None) -> Path:
        """Return the file of one sample, or the further one whose path a column has."""
        return self.root / (self.paths[sample_id] if column is None else str(self.columns[column][sample_id]))

    @property
    def on_disk(self) -> bool:
        """Whether `path` is a file that can be opened: always."""
        return True

    def read(self, sample_id: int, column: str | None = None) -> bytes:
        """Return such a file whole; raises OSError."""
        return self.path(sample_id, column).read_bytes()

    def encoded_bytes(self, ids: npt.NDArray[np.int64]) -> int:
        """Return the stored size of these samples together, in bytes."""
        return int(self.sizes[ids].sum())

    def at(self, root: Path) -> Samples:
        """Return the same samples under another root, such as a mount."""
        return replace(self, root=root)

    def first(self, count: int) -> Samples:
        """Return the first `count` samples, their ids unchanged."""
        columns = {name: column[:count] for name, column in self.columns.items()}
        return Samples(self.root, self.paths[:count], self.labels[:count], self.sizes[:count], columns)

    def with_listing(self, count: int) -> Samples:
        """Return the same samples with a listing of so many paths, which repeats theirs.

        Each path is a text of its own, so that pickling the listing costs what that of so many files costs.
        """
        paths = itertools.islice(itertools.cycle(self.paths), count)
        return replace(self, listing=tuple(path[:1] + path[1:] for path in paths))

    def save(self, path: Path) -> None:
        """Write paths, labels, sizes and the other columns as Parquet; the root is the schema's metadata."""
        table = pa.table({"path": list(self.paths), "label": self.labels, "size": self.sizes, **self.columns})
        pq.write_table(table.replace_schema_metadata({"root": str(self.root)}), path)

    @classmethod
    def load(cls, path: Path) -> Samples:
        """Read what `save` wrote."""
        # Neither read_table nor to_numpy, which import pandas: 0.4 s and 25 MB in every process that loads.
        table = pq.ParquetFile(path).read()
        root = Path((table.schema.metadata or {})[b"root"].decode())
        return cls(
            root,
            tuple(table["path"].to_pylist()),
            np.from_dlpack(table["label"].combine_chunks()).astype(np.int64),
            np.from_dlpack(table["size"].combine_chunks()).astype(np.int64),
            {name: table[name].combine_chunks() for name in table.column_names[3:]},
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as the training step takes it."""

    ids: npt.NDArray[np.int64]
    """Sample ids, shape (n,)."""
    data: torch.Tensor
    """What the model takes, on the loader's device; for images float32 of shape (n, 3, H, W)."""
    labels: torch.Tensor
    """What it is to answer, on the loader's device; for classification int64 of shape (n,)."""
    nbytes: int
    """Encoded bytes of the batch's samples, as stored."""
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What else the workload's loss needs, by name, on the loader's device."""
    work_s: npt.NDArray[np.float64] | None = None
    """Seconds from reading to the last transform of every sample, shape (n,); None where not measured."""

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> Batch:
        """Return the same batch in memory of its own."""
        extra = {name: value.clone() for name, value in self.extra.items()}
        return replace(self, data=self.data.clone(), labels=self.labels.clone(), extra=extra)


@dataclass(slots=True)
class LoaderStats:
    """What a loader counted since it was made."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    """Encoded bytes of the samples that were yielded."""
    details: dict[str, float] = field(default_factory=dict)
    """Figures of this loader alone; keys carry their unit."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Why samples were left out under on_error=skip, by their ids; `details["skipped_samples"]` counts every time."""

    def count(self, batch: Batch, *, is_repeat: bool = False) -> None:
        """Add a batch that is about to be yielded, perhaps once more in the place of one that failed."""
        self.batches += 1
        if is_repeat:
            self.details["repeated_samples"] = self.details.get("repeated_samples", 0.0) + len(batch)
        self.samples += len(batch)
        self.bytes += batch.nbytes

    def skip(self, sample_id: int, why: str) -> None:
        """Add a sample that failed and is left out."""
        self.skipped[sample_id] = why
        self.details["skipped_samples"] = self.details.get("skipped_samples", 0.0) + 1


class Loader(Protocol):
    """Yields every sample of its dataset exactly once per epoch.

    Constructors take keywords only: `transform`, `batch_size`, `seed`, `device`, then `samples` (loaders that
    read files) or `endpoint` (loaders that are streamed to), then the loader's own arguments.

    The random numbers of a sample are those of its pipeline, which follow from (seed, epoch, id): the harness makes
    samples again and compares them. A loader that draws its own has the attribute `augments_itself`, which is true.
    """

    notes: tuple[str, ...]
    """Where this engine differs from the others in what it does to a sample; shown beside its name."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield ceil(n / batch_size) batches, shuffled by (seed, epoch); the last one may be short.

        Raises SampleError naming the sample, WorkerError naming the worker, StreamError naming the peer.
        """
        ...

    def stats(self) -> LoaderStats:
        """Return the counts so far."""
        ...

    def close(self) -> None:
        """End workers and sockets; may be called twice, and in the middle of an epoch."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
