# ruff: noqa: S608 - the names in the statements are checked
"""The tables of a dataset in the database, and the address that names them.

A dataset KEYSPACE.NAME is a data table, a metadata table and a row of the keyspace's table of datasets, as in listing 1
of the Cassandra-DALI paper: one query of the data table returns the features and the label of a sample. The primary key
of both is the sample's UUID, which is made of its id, so a client needs no list of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from loaders.errors import LoaderConfigError

FORM: Final = "cassandra-1"
"""Name and version of these tables."""
PORT: Final = 9042
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ENDPOINT: Final = re.compile(r"cassandra://(\[[^\]]+\]|[^:/]+)(?::(\d{1,5}))?/([^./]+)\.([^./]+)")


def sample_uuid(sample_id: int) -> UUID:
    """Return the primary key of a sample: the UUID of version 8 (RFC 9562) whose last 62 bits are the id."""
    return UUID(int=8 << 76 | 2 << 62 | sample_id)


def quote(column: str) -> str:
    """Return the name of a column as statements have it."""
    return '"' + column.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class DatabaseTable:
    """A dataset's place in the database."""

    host: str
    port: int
    keyspace: str
    name: str

    @classmethod
    def parse(cls, endpoint: str) -> DatabaseTable:
        """Read cassandra://HOST:PORT/KEYSPACE.NAME; raises LoaderConfigError."""
        found = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if found is None or not all(map(_NAME.fullmatch, found.groups()[2:])) or int(found[2] or PORT) > 65_535:
            raise LoaderConfigError(
                f"endpoint={endpoint!r}: expected cassandra://HOST:PORT/KEYSPACE.NAME, with names of small letters, "
                "digits and _"
            )
        return cls(found[1].strip("[]"), int(found[2] or PORT), found[3], found[4])

    @property
    def endpoint(self) -> str:
        """The address that `parse` reads."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"cassandra://{host}:{self.port}/{self.keyspace}.{self.name}"

    @property
    def data(self) -> str:
        """Name of the table of data in statements."""
        return f"{self.keyspace}.{self.name}"

    @property
    def metadata(self) -> str:
        """Name of the table of metadata in statements."""
        return f"{self.data}_metadata"

    @property
    def partial(self) -> str:
        """The name by which the table of datasets has this one from its first sample on until it is whole."""
        return f"{self.name}.partial"

    @property
    def create(self) -> tuple[str, ...]:
        """Statements that make the tables where they are not there; the keyspace is there.

        Data is stored as it is, because encoded samples do not get smaller. A row is written once, so that there is
        nothing to compact, and no compaction reads the table while it is served.
        """
        written_once = "compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.data} (sample uuid PRIMARY KEY, sample_id bigint, "
            f"label bigint, file int, size int, record blob) WITH compression = {{'enabled': 'false'}} "
            f"AND {written_once}",
            f"CREATE TABLE IF NOT EXISTS {self.metadata} (sample uuid PRIMARY KEY, "
            f"sample_id bigint, label bigint, size bigint) WITH {written_once}",
            f"CREATE TABLE IF NOT EXISTS {self.keyspace}.datasets (name text PRIMARY KEY, form text, samples bigint, "
            "nbytes bigint, key text)",
        )

    @property
    def insert(self) -> str:
        """Statement that stores a sample: UUID, id, label, offset and size of its file in the record, the record."""
        return _insert(self.data, ("sample", "sample_id", "label", "file", "size", "record"))

    def insert_metadata(self, columns: Sequence[str] = ()) -> str:
        """Return the statement that stores a sample's UUID, id, label, size of its file, and these columns."""
        names = ("sample", "sample_id", "label", "size", *map(quote, columns))
        return _insert(self.metadata, names)

    @property
    def mark(self) -> str:
        """Statement that is executed last, with name, FORM, samples, bytes of all records and the content's key."""
        return _insert(f"{self.keyspace}.datasets", ("name", "form", "samples", "nbytes", "key"))

    @property
    def unmark(self) -> str:
        """Statement that takes a name out of the table of datasets."""
        return f"DELETE FROM {self.keyspace}.datasets WHERE name = ?"

    @property
    def find(self) -> str:
        """Query of the row that says that a dataset is whole, by name: form, samples, bytes, key of the content."""
        return f"SELECT form, samples, nbytes, key FROM {self.keyspace}.datasets WHERE name = ?"

    @property
    def select(self) -> str:
        """Query of one sample by `sample_uuid` of its id: id, label, file, size, record."""
        return f"SELECT sample_id, label, file, size, record FROM {self.data} WHERE sample = ?"


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
