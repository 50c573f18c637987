"""Storing the records of a shard folder in the tables of a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from loaders.errors import LoaderConfigError, ShardError, StreamError
from loaders.nosql.keys import Login
from loaders.nosql.schema import FORM, DatabaseTable, quote, sample_uuid
from loaders.nosql.server.configuration import MAX_RECORD_BYTES
from loaders.nosql.session import open_session
from loaders.records.shards.columns import ReadColumns
from loaders.records.shards.example import ExampleView
from loaders.records.shards.index import ShardSet
from loaders.records.shards.tfrecord import HEADER_BYTES, check_record

Progress = Callable[[int, int], None]
"""Called with how many samples are stored, and of how many."""
_CHUNK: Final = 256
"""Samples whose data is stored before their metadata, which says that it is."""
_CHUNK_BYTES: Final = 32 * 2**20
_IN_FLIGHT: Final = 64
"""Requests under way."""
_TRIES: Final = 6
_PAUSE_S: Final = 0.25
"""Before the second try; then twice as long each time."""
_OWN: Final = ("sample", "sample_id", "label", "size")
_TYPES: Final = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()), "bigint"),
    **dict.fromkeys((pa.string(), pa.large_string()), "text"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "blob"),
    **dict.fromkeys((pa.float16(), pa.float32()), "float"),
    pa.uint64(): "varint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
}

_Row = tuple[Any, ...]


def ingest(
    shards: Path, table: DatabaseTable, progress: Progress = lambda done, total: None, *, login: Login | None = None
) -> None:
    """Store every record of a shard folder in the tables of a server of its own, and then that the dataset is whole.

    One that was ended, in whatever way, goes on with the samples whose metadata is not there. Each row depends on its
    record alone, so that storing it again changes nothing. `progress` is called with the numbers of samples stored and
    of all. `login` is for a server with keys.

    Raises:
        ShardError: a record is damaged.
        LoaderConfigError: the tables have another dataset, or cannot hold this one.
        StreamError: the database cannot be reached, or goes on failing.
    """
    dataset = ShardSet.open(shards)
    _check_sizes(dataset)
    with open_session(table.host, table.port, login) as session:
        if _is_whole(session, table, dataset):
            progress(dataset.samples, dataset.samples)
            return
        stored = {row.sample_id for row in session.execute(f"SELECT sample_id FROM {table.metadata}")}  # noqa: S608
        done = len(stored)
        progress(done, dataset.samples)
        writer = _TableWriter(session, table)
        # The next chunk is read and checked while this one is sent.
        with ThreadPoolExecutor(1) as reader:
            rows = _records(dataset, stored)
            coming = reader.submit(_take_chunk, rows)
            while chunk := coming.result():
                coming = reader.submit(_take_chunk, rows)
                writer.write(chunk)
                done += len(chunk)
                progress(done, dataset.samples)
        _mark(session, table, dataset)


def _check_sizes(dataset: ShardSet) -> None:
    for shard in dataset.shards:
        largest = int(shard.records["size"].argmax()) if len(shard.records) else 0
        if len(shard.records) and shard.records["size"][largest] > MAX_RECORD_BYTES:
            record = shard.records[largest]
            raise LoaderConfigError(
                f"{shard.path}: sample {record['id']} has {record['size']} bytes, and Cassandra takes rows "
                f"of up to {MAX_RECORD_BYTES}; serve such samples with loaders.streaming"
            )


def _is_whole(session: Any, table: DatabaseTable, dataset: ShardSet) -> bool:
    """Return whether the tables have the dataset already; else make them, and say whose samples come."""
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {table.keyspace} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    for statement in table.create:
        session.execute(statement)
    find, mark = session.prepare(table.find), session.prepare(table.mark)
    whole, half = (session.execute(find, [name]).one() for name in (table.name, table.partial))
    for found in (whole, half):
        if found is not None and (found.form, found.key) != (FORM, dataset.key):
            raise LoaderConfigError(
                f"the folder has tables of another dataset or form ({found.form}, {found.key}; this one is {FORM}, "
                f"{dataset.key}): name another folder"
            )
    if whole is None:
        session.execute(mark, [table.partial, FORM, dataset.samples, dataset.nbytes, dataset.key])
    return whole is not None


def _mark(session: Any, table: DatabaseTable, dataset: ShardSet) -> None:
    """Say that the dataset is whole, once all its samples are there."""
    counted = sum(1 for _ in session.execute(f"SELECT sample_id FROM {table.metadata}"))  # noqa: S608
    if counted != dataset.samples:
        raise StreamError(
            f"{table.endpoint} has {counted} samples, and {dataset.samples} were stored: prepare a new folder"
        )
    session.execute(session.prepare(table.mark), [table.name, FORM, dataset.samples, dataset.nbytes, dataset.key])
    session.execute(session.prepare(table.unmark), [table.partial])


def _records(dataset: ShardSet, stored: set[int]) -> Iterator[tuple[_Row, dict[str, tuple[str, Any]]]]:
    """Yield the data of every sample that is not stored, and its columns with their types."""
    for shard in dataset.shards:
        if not len(shard.records):
            continue
        with shard.path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapped:
            for offset, size, image, image_size, label, sample, _ in shard.records.tolist():
                if sample in stored:
                    continue
                record = mapped[offset : offset + size]
                payload = check_record(record, f"{shard.path} at byte {offset}")
                columns = ReadColumns(ExampleView(payload), (image - HEADER_BYTES, image_size))
                values = {name: _value(sample, name, columns[name]) for name in columns}
                yield (sample_uuid(sample), sample, label, image, image_size, record), values


def _value(sample: int, name: str, column: pa.Array) -> tuple[str, Any]:
    if name in _OWN or not name.isprintable():
        raise LoaderConfigError(f"the dataset's column {name!r}: the table of metadata has no room for this name")
    try:
        return _type(column.type), column[0].as_py()
    except KeyError as error:
        raise ShardError(f"sample {sample}: column {name!r} is of the type {column.type}") from error


def _type(kind: pa.DataType) -> str:
    """Return CQL's name of a type; "" for that of a value that is missing."""
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_list(kind):
        inner = _type(kind.value_type)
        return inner and f"frozen<list<{inner}>>"
    return _TYPES[kind]


def _take_chunk(rows: Iterator[Any]) -> list[Any]:
    chunk: list[Any] = []
    nbytes = 0
    for row in islice(rows, _CHUNK):
        chunk.append(row)
        nbytes += len(row[0][-1])
        if nbytes >= _CHUNK_BYTES:
            break
    return chunk


class _TableWriter:
    """Stores chunks of samples: the data of all, then the metadata of all."""

    def __init__(self, session: Any, table: DatabaseTable) -> None:
        self._session, self._table = session, table
        self._insert = session.prepare(table.insert)
        self._columns: dict[str, str] = {}
        self._statements: dict[tuple[str, ...], Any] = {}

    def write(self, chunk: Sequence[tuple[_Row, dict[str, tuple[str, Any]]]]) -> None:
        """Store them; raises StreamError naming a sample that could not be stored."""
        self._execute([(self._insert, row) for row, _ in chunk])
        metadata = []
        for (uuid, sample, label, _, size, _), values in chunk:
            present = {name: value for name, (kind, value) in values.items() if kind and value is not None}
            self._add_columns({name: values[name][0] for name in present})
            statement = self._statement(tuple(present))
            metadata.append((statement, (uuid, sample, label, size, *present.values())))
        self._execute(metadata)

    def _add_columns(self, types: dict[str, str]) -> None:
        for name, kind in types.items():
            if name not in self._columns:
                self._session.execute(f"ALTER TABLE {self._table.metadata} ADD IF NOT EXISTS {quote(name)} {kind}")
                self._columns[name] = kind
            elif self._columns[name] != kind:
                raise LoaderConfigError(
                    f"the dataset's column {name!r} has types {self._columns[name]} and {kind}: expected one type "
                    "for all samples"
                )

    def _statement(self, columns: tuple[str, ...]) -> Any:
        if columns not in self._statements:
            self._statements[columns] = self._session.prepare(self._table.insert_metadata(columns))
        return self._statements[columns]

    def _execute(self, todo: list[tuple[Any, _Row]]) -> None:
        from cassandra.concurrent import execute_concurrent

        for tries in range(_TRIES):
            results = execute_concurrent(self._session, todo, _IN_FLIGHT, raise_on_first_error=False)
            failed = [(one, result) for one, (fine, result) in zip(todo, results, strict=True) if not fine]
            if not failed:
                return
            todo = [one for one, _ in failed]
            if tries < _TRIES - 1:
                time.sleep(_PAUSE_S * 2**tries)
        (_, row), reason = failed[0]
        raise StreamError(
            f"{self._table.endpoint}: sample {row[1]} could not be stored in {_TRIES} tries: "
            f"{type(reason).__name__}: {reason}; prepare the folder again: it goes on"
        )
