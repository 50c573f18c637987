"""Splits of the metadata of a dataset in a real database."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from loaders.errors import SplitError
from loaders.nosql.schema import FORM, Table
from loaders.nosql.server.process import CassandraServer
from loaders.nosql.session import open_session
from loaders.nosql.splits import fetch_metadata, load_split, make_splits, save_splits

PATIENTS = 20


@pytest.mark.process
@pytest.mark.serial
def test_a_dataset_of_a_database_is_split_by_its_columns(tmp_path: Path) -> None:
    with CassandraServer(tmp_path / "server", removes_home=True, heap_mb=512) as server:
        table = Table(server.host, server.port, "joulefeed", "slides")
        with open_session(table.host, table.port, None) as session:
            session.execute(
                "CREATE KEYSPACE joulefeed WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            for statement in table.create:
                session.execute(statement)
            with pytest.raises(SplitError, match=r"joulefeed\.slides: there is no whole dataset"):
                fetch_metadata(table)
            session.execute("ALTER TABLE joulefeed.slides_metadata ADD patient text")
            insert = session.prepare(table.insert_metadata(["patient"]))
            for sample in range(5 * PATIENTS):
                session.execute(insert, [UUID(int=sample + 1), sample, sample % 2, 100, f"p{sample // 5}"])
            session.execute(session.prepare(table.mark), ["slides", FORM, 5 * PATIENTS, 1000, "key"])
        metadata = fetch_metadata(table, label="label", entity="patient")
        with pytest.raises(SplitError, match=r"slides_metadata: there is no column 'age'; .*patient"):
            fetch_metadata(table, label="age")
    splits = make_splits(metadata, {"train": 0.8, "test": 0.2})
    save_splits(splits, tmp_path / "splits.parquet", {})
    train, test = (load_split(tmp_path / "splits.parquet", name) for name in ("train", "test"))
    assert sorted([*train, *test]) == list(range(5 * PATIENTS)) and len(test) == PATIENTS
    assert not set(train // 5) & set(test // 5)
