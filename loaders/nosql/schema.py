# ruff: noqa: S608 - the names in the statements are checked
"""The tables of a dataset in the database, and the address that names them.

A dataset KEYSPACE.NAME is a data table, a metadata table and a row of the keyspace's table of datasets, as in listing 1
of the Cassandra-DALI paper: one query of the data table returns the features and the label of a sample.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from loaders.errors import LoaderConfigError

FORM: Final = "cassandra-1"
"""Name and version of these tables."""
PORT: Final = 9042
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ENDPOINT: Final = re.compile(r"cassandra://(\[[^\]]+\]|[^:/]+)(?::(\d{1,5}))?/([^./]+)\.([^./]+)")


@dataclass(frozen=True, slots=True)
class Table:
    """A dataset's place in the database."""

    host: str
    port: int
    keyspace: str
    name: str

    @classmethod
    def parse(cls, endpoint: str) -> Table:
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
    def create(self) -> tuple[str, ...]:
        """Statements that make the tables where they are not there; the keyspace is there.

        Data is stored as it is, because encoded samples do not get smaller.
        """
        return (
            f"CREATE TABLE IF NOT EXISTS {self.keyspace}.{self.name} (sample_id bigint PRIMARY KEY, label bigint, "
            "file int, size int, record blob) WITH compression = {'enabled': 'false'}",
            f"CREATE TABLE IF NOT EXISTS {self.keyspace}.{self.name}_metadata (sample_id bigint PRIMARY KEY, "
            "label bigint, path text, size bigint)",
            f"CREATE TABLE IF NOT EXISTS {self.keyspace}.datasets (name text PRIMARY KEY, form text, samples bigint, "
            "nbytes bigint, key text)",
        )

    @property
    def insert(self) -> str:
        """Statement that stores a sample: id, label, offset and size of its file in the record, and the record."""
        return f"INSERT INTO {self.keyspace}.{self.name} (sample_id, label, file, size, record) VALUES (?, ?, ?, ?, ?)"

    @property
    def insert_metadata(self) -> str:
        """Statement that stores the metadata of a sample: id, label, path, size of all its files."""
        return f"INSERT INTO {self.keyspace}.{self.name}_metadata (sample_id, label, path, size) VALUES (?, ?, ?, ?)"

    @property
    def mark(self) -> str:
        """Statement that is executed last, with name, FORM, samples, bytes of all records and the content's key."""
        return f"INSERT INTO {self.keyspace}.datasets (name, form, samples, nbytes, key) VALUES (?, ?, ?, ?, ?)"

    @property
    def unmark(self) -> str:
        """Statement that is executed before the first sample is stored, with the name."""
        return f"DELETE FROM {self.keyspace}.datasets WHERE name = ?"

    @property
    def find(self) -> str:
        """Query of the row that says that a dataset is whole, by name."""
        return f"SELECT form, samples, nbytes FROM {self.keyspace}.datasets WHERE name = ?"

    @property
    def select(self) -> str:
        """Query of one sample by its id, from 0 to samples - 1: label, file, size, record."""
        return f"SELECT label, file, size, record FROM {self.keyspace}.{self.name} WHERE sample_id = ?"
