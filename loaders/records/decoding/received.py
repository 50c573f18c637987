"""Arrays that are stored as bare elements, their shape and dtype beside them: what `convert --from numpy` makes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from loaders.errors import ShardError, WireError
from loaders.pipeline import UndecodableError
from loaders.records.raw_batch import RawBatch
from loaders.records.shards.columns import LABELS, ReadColumns, name_file_feature
from loaders.records.shards.example import ExampleView
from loaders.records.shards.tfrecord import FOOTER_BYTES, HEADER_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


def is_bare(example: ExampleView, name: str) -> bool:
    """Return whether `name`/shape and `name`/dtype stand beside an array's elements."""
    return f"{name}/shape" in example and f"{name}/dtype" in example


def npy_file(example: ExampleView, name: str, elements: memoryview) -> memoryview:
    """Return an array's elements, C order and little-endian, as the .npy file that they were, which copies them once.

    Raises ShardError for a shape or dtype that is none.
    """
    shape, dtype = example[f"{name}/shape"], example[f"{name}/dtype"]
    try:
        (kind,) = dtype
        described = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(bytes(kind).decode()).newbyteorder("<")),  # type: ignore[arg-type]
            "fortran_order": False,
            "shape": tuple(int(length) for length in shape),
        }
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, described)
    except (TypeError, ValueError) as error:
        raise ShardError(f"tf.train.Example: {name}/shape {shape} or {name}/dtype {dtype} is none: {error}") from error
    return memoryview(head.getvalue() + elements)


PATHS: Final = ("image/path", "image/filename", "volume/path", "audio/path", "path")
"""Features with the path of a sample's file, in the order in which they are tried."""
_Value = TypeVar("_Value")

_MASK: Final = "mask/encoded"


class ReceivedSample:
    """One sample: its record, which is read when something in it is asked for."""

    def __init__(self, content: memoryview, label: int, file: int, size: int) -> None:
        """Read a sample: `content` is its TFRecord record, in which its file has `size` bytes from `file` on."""
        self.content, self.label, self.at = content, label, file
        self.payload = content[file : file + size].toreadonly()
        self._message = content[HEADER_BYTES : len(content) - FOOTER_BYTES].toreadonly()
        self._problem = ""
        self._example: ExampleView | None = None
        self._columns: ReadColumns | None = None

    @property
    def file(self) -> memoryview:
        """The sample's file; not copied, unless only the elements of an array are stored."""
        try:
            bare = is_bare(self._read(), "volume")
        except UndecodableError:
            return self.payload  # its decoder finds out what is wrong with it
        return self._attempt(lambda: npy_file(self._read(), "volume", self.payload)) if bare else self.payload

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
            files = [span for name in columns for span in example.spans(_feature_of(example, name))]
        except (UndecodableError, ShardError):
            return len(self.payload)
        return len(self.payload) + sum(size for _, size in files)

    @property
    def columns(self) -> ReadColumns:
        """The sample's columns; raises UndecodableError when the record is malformed."""
        if self._columns is None:
            payload = self.at - HEADER_BYTES, len(self.payload)
            self._columns = self._attempt(lambda: ReadColumns(self._read(), payload))
        return self._columns

    def value(self, column: str) -> pa.Scalar:
        """Return a column's value as an Arrow scalar; raises KeyError, or UndecodableError when it is malformed."""
        return self._attempt(lambda: self.columns[column][0])

    def read_file(self, column: str) -> memoryview:
        """Return the further file that a column names; raises UndecodableError where it is missing."""
        example = self._read()
        name = _feature_of(example, column)
        spans = self._attempt(lambda: example.spans(name))
        if len(spans) != 1:
            raise UndecodableError(f"its record holds no file for the column {column}; convert the data again")
        ((at, size),) = spans
        found = self._message[at : at + size]
        return self._attempt(lambda: npy_file(example, "mask", found)) if name == _MASK else found

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

    def _attempt(self, read: Callable[[], _Value]) -> _Value:
        try:
            return read()
        except ShardError as error:
            raise UndecodableError(f"its record is malformed: {error}") from error


def _feature_of(example: ExampleView, column: str) -> str:
    """Return the name of the feature with the file that a column names."""
    bare = column == LABELS and is_bare(example, "mask")
    return _MASK if bare else name_file_feature(column)


class _RowValues(Generic[_Value]):
    """One value of each row, by sample id; it is read when it is asked for."""

    def __init__(self, rows: Mapping[int, ReceivedSample], read: Callable[[ReceivedSample], _Value]) -> None:
        self._rows, self._read = rows, read

    def __getitem__(self, sample_id: int) -> _Value:
        return self._read(self._rows[sample_id])


class ReceivedSamples:
    """The samples of one batch, by their ids, as pipelines read them: none of them is a file."""

    on_disk = False

    def __init__(self, rows: Mapping[int, ReceivedSample]) -> None:
        self.rows = rows
        self.paths = _RowValues(rows, lambda row: row.path)
        self.labels = _RowValues(rows, lambda row: row.label)
        self.sizes = _RowValues(rows, lambda row: row.size)
        self.columns = _Columns(rows)

    def path(self, sample_id: int, column: str | None = None) -> Path:
        """Return the path that was stored with a sample, or that of its further file that a column names."""
        return Path(self.rows[sample_id].path if column is None else str(self.columns[column][sample_id]))

    def read(self, sample_id: int, column: str | None = None) -> memoryview:
        """Return a sample's file, or the further one that a column names, not copied."""
        row = self.rows[sample_id]
        return row.file if column is None else row.read_file(column)


class _Columns(Mapping[str, "_RowValues[pa.Scalar]"]):
    """The columns that any of the samples has, by name."""

    def __init__(self, rows: Mapping[int, ReceivedSample]) -> None:
        self._rows = rows

    @cached_property
    def _names(self) -> dict[str, None]:
        names: dict[str, None] = {}
        for row in self._rows.values():
            with suppress(UndecodableError):  # raised again when its own columns are asked for
                names.update(dict.fromkeys(row.columns))
        return names

    def __getitem__(self, name: str) -> _RowValues[pa.Scalar]:
        if name not in self._names:
            raise KeyError(name)
        return _RowValues(self._rows, lambda row: row.value(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_rows(raw: RawBatch) -> list[ReceivedSample]:
    """Return the samples of a batch, in its order, by the lengths that their records state; nothing is copied.

    Raises WireError where a sample's file lies outside of its record.
    """
    found: list[ReceivedSample] = []
    at, current = 0, -1
    columns = (raw.frame_of, raw.offsets, raw.sizes, raw.labels)
    for number, offset, size, label in zip(*(column.tolist() for column in columns), strict=True):
        if number != current:
            at, current = 0, number
        frame = raw.frames[number]
        end = at + HEADER_BYTES + int.from_bytes(frame[at : at + 8], "little") + FOOTER_BYTES
        if not (at + HEADER_BYTES <= offset and offset + size <= end - FOOTER_BYTES and end <= len(frame)):
            raise WireError(f"batch {raw.batch} of epoch {raw.epoch}: the daemon sent a file outside of its record")
        found.append(ReceivedSample(frame[at:end], label, offset - at, size))
        at = end
    return found
