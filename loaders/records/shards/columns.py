"""A sample's row of its dataset's columns, as features of its record that TensorFlow reads too.

The feature `columns` lists them, each as its name, a blank and its type, such as `transcript string` or
`boxes list<list<float>>`; the type is `null` where the row has no value. `column/NAME` holds the values: of a list, and
of lists in lists, all of them in one row. The lengths of the inner lists are `column/NAME/lengths/0`, `/1` and so on
from the outermost lists in. `tf.io.RaggedFeature` puts them together again, with
`partitions=[tf.io.RaggedFeature.RowLengths("column/NAME/lengths/0"), ...]`. A column of doubles, which features have
not, is one string of bytes for `tf.io.decode_raw(..., tf.float64)`. The file of a column NAME_path is
`column/NAME_path/encoded`. Of an Example without `columns` every feature but the payload is a column, a list of its
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from loaders.errors import LoaderConfigError, ShardError
from loaders.records.shards.example import ExampleView, Feature

FILE_SUFFIX: Final = "_path"
"""Ends the names of columns with the paths of further files."""
LABELS: Final = "label_path"
"""The column with the paths of volumes' labels."""
_LISTED: Final = "columns"
_TEXT: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())
_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_SHORT: Final = (pa.float16(), pa.float32())
_LEAVES: Final = {str(kind): kind for kind in (*_TEXT, *_BYTES, *_WHOLE, *_SHORT, pa.float64(), pa.bool_())}
_DEEPEST: Final = 8
"""Lists in lists of a column."""
_LIST, _NULL, _FEATURE = "list<", "null", "feature"


def name_file_feature(column: str) -> str:
    """Return the name of the feature with the file that a column names."""
    return f"column/{column}/encoded"


def to_storable(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return columns as records hold them; raise LoaderConfigError naming one that they cannot hold."""
    return {name: _storable(name, column) for name, column in columns.items()}


def _storable(name: str, column: pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        array = array.cast(_plain(array.type))
        inner, depth = array, 0
        while pa.types.is_list(inner.type):
            inner, depth = inner.flatten(), depth + 1
            if inner.null_count:
                raise ValueError("has nothing at some places of its lists")
        if not name or "\n" in name:
            raise ValueError("has no name of one line")
        if depth > _DEEPEST or str(inner.type) not in _LEAVES:
            raise ValueError(f"is of the type {array.type}")
    except (pa.ArrowException, ValueError) as error:
        raise LoaderConfigError(
            f"the dataset's column {name!r} {error}: a record of a shard holds text, bytes, numbers, truth values and "
            "lists of them; have the dataset give it so, or leave it out"
        ) from error
    return array


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without what changes no value: dictionaries, and lists of a fixed or of great length."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def encode_row(columns: Mapping[str, pa.Array], row: int) -> dict[str, Feature]:
    """Return one row of storable columns as features; none where there are no columns."""
    features: dict[str, Feature] = {}
    listed: list[bytes] = []
    for name, column in columns.items():
        values = column.slice(row, 1)
        if values.null_count:
            listed.append(f"{name} {_NULL}".encode())
            continue
        depth = 0
        while pa.types.is_list(values.type):
            if depth:
                features[_lengths_feature(name, depth - 1)] = values.value_lengths().to_pylist()
            values, depth = values.flatten(), depth + 1
        listed.append(f"{name} {_LIST * depth}{values.type}{'>' * depth}".encode())
        features[f"column/{name}"] = _flat(values)
    return {_LISTED: listed, **features} if listed else {}


def _lengths_feature(name: str, level: int) -> str:
    return f"column/{name}/lengths/{level}"


def _flat(values: pa.Array) -> Feature:
    if values.type in _TEXT:
        return [text.encode() for text in values.to_pylist()]
    if values.type == pa.float64():
        return [values.to_numpy().astype("<f8").tobytes()]
    if values.type in _SHORT:
        return [float(value) for value in values.to_numpy()]
    return [int(value) for value in values.to_pylist()] if values.type not in _BYTES else list(values.to_pylist())


class ReadColumns(Mapping[str, pa.Array]):
    """The columns of one record, each an array of one row that is made when it is asked for."""

    def __init__(self, example: ExampleView, payload: tuple[int, int] | None = None) -> None:
        """Find the columns by name; raises ShardError when the list of them is malformed.

        An Example without such a list is another writer's: each feature is a column, a list of all its values, but for
        the one whose bytes lie at `payload`, offset and size in the message.
        """
        self._example = example
        self._types: dict[str, str] = {}
        if _LISTED not in example:
            self._types = {name: _FEATURE for name in example if example.spans(name) != [payload]}
            return
        for entry in example[_LISTED]:
            name, _, kind = entry.decode(errors="replace").rpartition(" ") if isinstance(entry, bytes) else ("", "", "")
            if not name:
                raise ShardError(f"tf.train.Example: {entry!r} in its columns is no name and type")
            self._types[name] = kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __getitem__(self, name: str) -> pa.Array:
        """Return a column; raises KeyError where there is none of this name, ShardError when it is malformed."""
        kind = self._types[name]
        if kind == _NULL:
            return pa.nulls(1)
        if kind == _FEATURE:
            return _feature(self._example[name])
        depth = kind.count(_LIST)
        leaf = kind[depth * len(_LIST) : len(kind) - depth]
        if leaf not in _LEAVES or kind != f"{_LIST * depth}{leaf}{'>' * depth}" or depth > _DEEPEST:
            raise ShardError(f"tf.train.Example: column {name!r} is of the type {kind!r}, which none is of")
        try:
            values = _array(self._feature(f"column/{name}"), _LEAVES[leaf])
            for level in range(depth - 2, -1, -1):
                values = _lists(self._feature(_lengths_feature(name, level)), values)
            if depth:
                return _lists([len(values)], values)
            if len(values) != 1:
                raise ValueError(f"{len(values)} values, not one")
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise ShardError(f"tf.train.Example: column {name!r} is no {kind}: {error}") from error
        return values

    def _feature(self, name: str) -> Feature:
        if name not in self._example:
            raise ShardError(f"tf.train.Example: there is no feature {name!r}")
        return self._example[name]


def _feature(values: Feature) -> pa.Array:
    """Return a feature's values as one list of bytes, whole numbers or floats."""
    types: dict[type, pa.DataType] = {bytes: pa.binary(), int: pa.int64(), float: pa.float32()}
    return pa.array([values], pa.list_(types[type(values[0])] if values else pa.null()))


def _array(values: Feature, kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        (packed,) = values
        return pa.array(np.frombuffer(packed, "<f8"))  # type: ignore[arg-type]
    if kind in _SHORT:
        return pa.array(np.array(values, np.float32).astype(kind.to_pandas_dtype()), kind)
    if kind in _TEXT:
        return pa.array([value.decode() for value in values], kind)  # type: ignore[union-attr]
    if kind == pa.bool_():
        return pa.array([bool(value) for value in values], kind)
    return pa.array(values, kind)


def _lists(lengths: Feature, values: pa.Array) -> pa.Array:
    """Return lists of these lengths, which have to be those of all values."""
    if any(not isinstance(length, int) or length < 0 for length in lengths) or sum(lengths) != len(values):  # type: ignore[arg-type]
        raise ValueError(f"lists of other lengths than its {len(values)} values have together")
    return pa.ListArray.from_arrays(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), values)
