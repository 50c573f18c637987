"""The samples of a batch as they came over the wire, as a pipeline sees samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy.typing as npt

from loaders.base import Samples
from loaders.pipeline import UndecodableError
from loaders.streaming.decoding.elements import is_bare, npy_file
from loaders.streaming.decoding.records import records_of
from loaders.streaming.errors import ShardError
from loaders.streaming.receiver.batch import RawBatch
from loaders.streaming.shards.columns import LABELS, ReadColumns, file_feature
from loaders.streaming.shards.example import ExampleView
from loaders.streaming.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES

__all__ = ["PATHS", "ReceivedSamples", "Row", "received", "rows_of"]

PATHS: Final = ("image/path", "image/filename", "volume/path", "audio/path", "path")
"""Features that tell the path of a sample's file, in the order in which they are tried."""
_MASK: Final = "mask/encoded"


class Row:
    """One sample: its record, which is read when something in it is asked for."""

    def __init__(self, content: memoryview, label: int, file: int, size: int, *, whole: bool = True) -> None:
        """Take a sample apart.

        `content` is its TFRecord record, where its file begins at `file` and has `size` bytes; or, if that is not
        `whole`, its file alone.
        """
        self.content, self.label, self.at, self.whole = content, label, file, whole
        self.payload = content[file : file + size].toreadonly()
        self._message = content[HEADER_BYTES : len(content) - FOOTER_BYTES].toreadonly()
        self._problem = "" if whole else "it does not fit its frame"
        self._example: ExampleView | None = None
        self._columns: ReadColumns | None = None

    @property
    def file(self) -> memoryview:
        """The sample's file; not copied, unless only the elements of an array are stored."""
        try:
            bare = is_bare(self._read(), "volume")
        except UndecodableError:
            return self.payload  # what it is worth, its decoder tells
        return self._tried(lambda: npy_file(self._read(), "volume", self.payload)) if bare else self.payload

    @property
    def path(self) -> str:
        """The path that is stored with the sample, or why there is none."""
        try:
            example = self._read()
            for name in PATHS:
                if name in example and (found := example[name]) and isinstance(found[0], bytes):
                    return found[0].decode(errors="replace")
        except (UndecodableError, ShardError) as error:
            return f"damaged: {error}"
        return "no path is stored with it"

    @property
    def size(self) -> int:
        """Bytes of all files of the sample."""
        try:
            example, columns = self._read(), self.columns
            files = [span for name in columns for span in _spans(example, _feature_of(example, name))]
        except (UndecodableError, ShardError):
            return len(self.payload)
        return len(self.payload) + sum(size for _, size in files)

    @property
    def columns(self) -> ReadColumns:
        """The sample's columns; raises UndecodableError when the record is malformed."""
        if self._columns is None:
            payload = self.at - HEADER_BYTES, len(self.payload)
            self._columns = self._tried(lambda: ReadColumns(self._read(), payload))
        return self._columns

    def value(self, column: str) -> Any:
        """Return a column's value as an Arrow scalar; raises KeyError, or UndecodableError when it is malformed."""
        return self._tried(lambda: self.columns[column][0])

    def beside(self, column: str) -> memoryview:
        """Return the file that a column tells of; raises UndecodableError where none came."""
        example = self._read()
        name = _feature_of(example, column)
        spans = self._tried(lambda: _spans(example, name))
        if len(spans) != 1:
            raise UndecodableError(f"its record holds no file for the column {column}; convert the data again")
        ((at, size),) = spans
        found = self._message[at : at + size]
        return self._tried(lambda: npy_file(example, "mask", found)) if name == _MASK else found

    def _read(self) -> ExampleView:
        if self._example is None:
            if self._problem:
                raise UndecodableError(f"its record is malformed: {self._problem}")
            try:
                self._example = ExampleView(self._message)
            except ShardError as error:
                self._problem = str(error)
                return self._read()
        return self._example

    def _tried(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ShardError as error:
            raise UndecodableError(f"its record is malformed: {error}") from error


def _feature_of(example: ExampleView, column: str) -> str:
    """Return the name of the feature that holds the file which a column tells of."""
    bare = column == LABELS and is_bare(example, "mask")
    return _MASK if bare else file_feature(column)


def _spans(example: ExampleView, name: str) -> list[tuple[int, int]]:
    return example.spans(name) if name in example else []


@dataclass(frozen=True, slots=True)
class ReceivedSamples(Samples):
    """The samples of one batch, by their ids; none of them is a file."""

    rows: Mapping[int, Row] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def on_disk(self) -> bool:
        """No."""
        return False

    def read(self, sample_id: int, column: str | None = None) -> memoryview:
        """Return what came of a sample's file, or of the further one that a column tells of, not copied."""
        row = self.rows[sample_id]
        return row.file if column is None else row.beside(column)


def rows_of(raw: RawBatch) -> list[Row]:
    """Return the samples of a batch, in its order."""
    rows = []
    for file, label, record in zip(raw.images(), raw.labels.tolist(), records_of(raw), strict=True):
        if record is None:
            rows.append(Row(file, label, 0, len(file), whole=False))
        else:
            rows.append(Row(record.content, label, record.file, len(file)))
    return rows


def received(rows: Mapping[int, Row]) -> ReceivedSamples:
    """Return samples that are these rows by their ids."""
    paths = cast(tuple[str, ...], _ById(rows, lambda row: row.path))
    labels = cast(npt.NDArray[Any], _ById(rows, lambda row: row.label))
    sizes = cast(npt.NDArray[Any], _ById(rows, lambda row: row.size))
    return ReceivedSamples(Path(), paths, labels, sizes, _Columns(rows), rows)


class _ById:
    """What is known of each sample, by its id."""

    def __init__(self, rows: Mapping[int, Row], of: Callable[[Row], Any]) -> None:
        self._rows, self._of = rows, of

    def __getitem__(self, sample_id: int) -> Any:
        return self._of(self._rows[sample_id])


class _Columns(Mapping[str, Any]):
    """The columns that any of the samples has, by name."""

    def __init__(self, rows: Mapping[int, Row]) -> None:
        self._rows = rows
        self._names: dict[str, None] | None = None

    def _known(self) -> dict[str, None]:
        if self._names is None:
            names: dict[str, None] = {}
            for row in self._rows.values():
                try:
                    names.update(dict.fromkeys(row.columns))
                except UndecodableError:
                    continue  # told when its own columns are asked for
            self._names = names
        return self._names

    def __getitem__(self, name: str) -> _ById:
        if name not in self._known():
            raise KeyError(name)
        return _ById(self._rows, lambda row: row.value(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())
