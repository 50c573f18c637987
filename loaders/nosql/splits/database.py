"""The metadata of a dataset that is stored in a database."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pyarrow as pa

from loaders.errors import SplitError
from loaders.nosql.schema import Table, quote
from loaders.nosql.session import Login, open_session
from loaders.nosql.splits.metadata import Metadata

SAMPLE_ID: Final = "sample_id"
"""The column of the ids by which a loader knows the samples."""


def fetch_metadata(
    table: Table,
    *,
    id: str = SAMPLE_ID,
    label: str | None = None,
    entity: str | None = None,
    login: Login | None = None,
    timeout_s: float = 30.0,
) -> Metadata:
    """Read the columns of these names from the table of a dataset's metadata.

    Raises SplitError naming the table and a column that cannot be used, or where the dataset is not whole, and
    StreamError where the database cannot be reached.
    """
    names = list(dict.fromkeys(name for name in (id, label, entity) if name is not None))
    where = f"{table.keyspace}.{table.name}_metadata"
    with open_session(table.host, table.port, login, timeout_s=timeout_s) as session:
        known = session.cluster.metadata.keyspaces.get(table.keyspace)
        described = known and known.tables.get(f"{table.name}_metadata")
        if not described or session.execute(session.prepare(table.find), [table.name]).one() is None:
            raise SplitError(f"{table.endpoint}: there is no whole dataset of this name; ingest it first")
        missing = [name for name in names if name not in described.columns]
        if missing:
            raise SplitError(
                f"{where}: there is no column {missing[0]!r}; its columns are {', '.join(described.columns)}"
            )
        statement = f"SELECT {', '.join(map(quote, names))} FROM {where}"  # noqa: S608 - the names are checked
        rows = [tuple(row) for row in session.execute(statement)]
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    try:
        return Metadata.of(
            pa.table({name: pa.array(map(_plain, values)) for name, values in zip(names, columns, strict=True)}),
            id=id,
            label=label,
            entity=entity,
        )
    except pa.ArrowException as error:
        raise SplitError(f"{where}: expected whole numbers or text: {error}") from error
    except SplitError as error:
        raise SplitError(f"{where}: {error}") from error


def _plain(value: object) -> object:
    return str(value) if isinstance(value, UUID) else value
