"""The metadata that splits are made of: each sample's id, and where named its class and its entity."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from loaders.errors import SplitError

_UUID_BYTES: Final = 16
_WHOLE_NUMBER: Final = r"^(0|-?[1-9][0-9]{0,17})$"
"""Texts of a CSV file that are read as whole numbers: "7" is one, "007" remains a text of its own."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as codes: the place of each sample's value among the sorted distinct values."""

    name: str
    values: list[Any]
    """The distinct values, sorted: whole numbers or texts."""
    codes: npt.NDArray[np.int64]
    """Shape (samples,)."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """The samples of a dataset, sorted by id, so that the order of the rows that were read changes nothing."""

    id_name: str
    ids: pa.Array
    """Distinct whole numbers (int64) or texts (large_string)."""
    classes: Column | None = None
    entities: Column | None = None
    sha256: str = field(default="")
    """Of the ids, classes and entities in order of id."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.ids)

    @classmethod
    def of(cls, table: pa.Table, *, id: str, label: str | None = None, entity: str | None = None) -> Metadata:
        """Take the columns of these names from a table of one row for each sample.

        Raises SplitError for a column that is not there, is neither whole numbers nor text or has empty places, for an
        id that comes twice, and for a table without rows.
        """
        columns = {name: _take(table, name) for name in (id, label, entity) if name is not None}
        if not table.num_rows:
            raise SplitError("the metadata has no rows: expected one for each sample")
        order = pc.sort_indices(columns[id])
        columns = {name: column.take(order) for name, column in columns.items()}
        ids = columns[id]
        repeated = pc.equal(ids[1:], ids[:-1])
        if pc.any(repeated).as_py():
            first = ids[1:].filter(repeated)[0]
            count = pc.sum(repeated).as_py()
            raise SplitError(
                f"column {id!r} has {first.as_py()!r} more than once, {count} such rows in all: expected one row for "
                "each sample; name the column of the sample's id"
            )
        digest = hashlib.sha256()
        for name, column in columns.items():
            digest.update(name.encode() + b"\0")
            _hash(column, digest)
        encoded = {name: _encode(name, column) for name, column in columns.items() if name != id}
        return cls(id, ids, encoded.get(label or ""), encoded.get(entity or ""), digest.hexdigest())


def read_metadata(path: Path, *, id: str, label: str | None = None, entity: str | None = None) -> Metadata:
    """Read a Parquet file, or a CSV file with a line of names; raises SplitError naming the file and the column."""
    names = [name for name in dict.fromkeys((id, label, entity)) if name is not None]
    try:
        if path.suffix == ".csv":
            table = _read_csv(path, names)
        else:
            known = pyarrow.parquet.read_schema(path).names
            table = pyarrow.parquet.read_table(path, columns=[name for name in names if name in known])
            _check_names(names, known)
        return Metadata.of(table, id=id, label=label, entity=entity)
    except OSError as error:
        raise SplitError(f"{path}: {error.strerror or error}: expected a Parquet or CSV file of metadata") from error
    except pa.ArrowException as error:
        raise SplitError(f"{path}: expected a Parquet file, or a CSV file with the suffix .csv: {error}") from error
    except SplitError as error:
        raise SplitError(f"{path}: {error}") from error


def _read_csv(path: Path, names: list[str]) -> pa.Table:
    """Read columns as texts, and those of whole numbers alone as numbers."""
    with pyarrow.csv.open_csv(path) as reader:
        _check_names(names, reader.schema.names)
    texts = pyarrow.csv.ConvertOptions(
        include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
    )
    table = pyarrow.csv.read_csv(path, convert_options=texts)
    for place, name in enumerate(names):
        column = table[name]
        if pc.all(pc.match_substring_regex(column, _WHOLE_NUMBER)).as_py():
            table = table.set_column(place, name, column.cast(pa.int64()))
    return table


def _check_names(names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise SplitError(f"there is no column {name!r}; its columns are {', '.join(known)}")


def _take(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array of int64 or large_string."""
    _check_names([name], table.schema.names)
    column = table[name].combine_chunks()
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if column.null_count:
        raise SplitError(f"column {name!r} is empty in {column.null_count} rows: every sample needs a value")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.large_string())
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES:
        return pa.array([value.hex() for value in column.to_pylist()], pa.large_string())
    raise SplitError(f"column {name!r} is of the type {kind}: expected whole numbers or text")


def _hash(column: pa.Array, digest: Any) -> None:
    """Add values to a hash so that different columns have different bytes: lengths first, then the values."""
    if pa.types.is_integer(column.type):
        digest.update(b"i" + column.to_numpy().astype("<i8").tobytes())
        return
    digest.update(b"s" + pc.binary_length(column).to_numpy().astype("<i8").tobytes())
    offsets = np.frombuffer(column.buffers()[1], "<i8")[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    if data is not None:
        digest.update(memoryview(data)[offsets[0] : offsets[-1]])


def _encode(name: str, column: pa.Array) -> Column:
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Column(name, encoded.dictionary.take(pa.array(order)).to_pylist(), place[encoded.indices.to_numpy()])
