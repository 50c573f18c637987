"""Faults of the database, which is a real server: each is an error that names it, or costs time only."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from loaders import Batch, LoaderConfigError, LoaderError, Samples, StreamError
from loaders.nosql import CassandraServer, NoSQLLoader
from loaders.nosql.client.connection import make_protocol
from loaders.nosql.ingest import ingest
from loaders.nosql.options import NoSQLOptions
from loaders.nosql.schema import DatabaseTable, sample_uuid
from loaders.nosql.session import open_session
from loaders.records.shards.convert import convert
from tests.loaders.small_data import write_samples

pytestmark = pytest.mark.process

COUNT = 301
KEYSPACE = "faults"
orders = pytest.mark.parametrize("out_of_order", [False, True])


@pytest.mark.parametrize("before", [(4, None), (4, None, None)], ids=["cassandra-driver", "scylla-driver"])
def test_an_answer_is_decoded_as_either_driver_hands_it_over(before: tuple[object, ...]) -> None:
    protocol = make_protocol(DatabaseTable("127.0.0.1", 9042, KEYSPACE, "set_1"))
    values = b"".join(
        len(value).to_bytes(4) + value for value in (b"%8d" % 1, b"%8d" % 2, b"%4d" % 3, b"%4d" % 4, b"abc")
    )
    body = memoryview(protocol.head + (1).to_bytes(4) + values)
    message = protocol.decode_message(*before, 7, 0, 8, body, None, [])
    (row,) = message.parsed_rows
    assert message.stream_id == 7 and row.label == int.from_bytes(b"%8d" % 2) and row.record == b"abc"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    random = np.random.default_rng(0)
    contents = [(f"{k:03d}.bin", random.bytes(700 + 48 * (k % 7))) for k in range(COUNT)]
    return write_samples(tmp_path_factory.mktemp("files"), contents)


@pytest.fixture(scope="module")
def shards(files: Samples) -> Path:
    return convert(files, files.root.with_name("shards"), key="files", seed=3)


class Database:
    """A server that can be killed, stopped for a while and started again, with the tables of each test."""

    def __init__(self, home: Path, shards: Path) -> None:
        self._home, self._shards, self._tables = home, shards, 0
        self.server = CassandraServer(home)

    def table(self) -> DatabaseTable:
        """Ingest the files once more."""
        self._tables += 1
        table = DatabaseTable(self.server.host, self.server.port, KEYSPACE, f"set_{self._tables}")
        ingest(self._shards, table)
        return table

    def execute(self, statement: str, *values: object) -> None:
        with open_session(self.server.host, self.server.port, None) as session:
            session.execute(session.prepare(statement), values)

    def signal(self, number: int) -> None:
        os.killpg(self.server.pid, number)

    def restart(self) -> None:
        port = self.server.port
        self.server.close()
        self.server = CassandraServer(self._home, port=port)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Iterator[Database]:
    made = Database(tmp_path_factory.mktemp("cassandra"), shards)
    yield made
    # Nothing of it is kept.
    made.signal(signal.SIGKILL)
    made.server.close()


def load(endpoint: str, **changed: object) -> NoSQLLoader:
    arguments = {"batch_size": 8, "seed": 5, "decode": "raw", "connections": 2, "prefetch_batches": 2}
    return NoSQLLoader(endpoint=endpoint, **(arguments | changed))  # type: ignore[arg-type]


def ids_of(batches: list[Batch]) -> list[int]:
    return sorted(sample_id for batch in batches for sample_id in batch.ids.tolist())


def after(seconds: float, do: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, do)
    timer.start()
    return timer


@orders
@pytest.mark.parametrize("slow_start", [0, 4])
def test_batches_are_the_records_that_were_ingested(database, files, out_of_order, slow_start) -> None:
    endpoint = database.table().endpoint
    with load(endpoint, out_of_order=out_of_order, slow_start=slow_start) as loader:
        for epoch in range(2):
            batches = list(loader.epoch(epoch))
            assert ids_of(batches) == list(range(COUNT))
        for batch in batches:
            for sample_id, label, image in zip(batch.ids.tolist(), batch.labels, batch.images(), strict=True):
                assert bytes(image) == files.read(sample_id)
                assert label == sample_id % 3


def test_an_epoch_of_a_split_has_its_samples_alone(database) -> None:
    endpoint, split = database.table().endpoint, np.arange(3, COUNT, 4)
    with load(endpoint, split=split) as loader:
        assert len(loader) == len(split)
        assert ids_of(list(loader.epoch(0))) == split.tolist()
    shares = [load(endpoint, split=split, rank=rank, world_size=2, remainder="uneven") for rank in range(2)]
    assert ids_of([batch for share in shares for batch in share.epoch(0)]) == split.tolist()
    for share in shares:
        share.close()
    for wrong, message in (([COUNT], f"ids from {COUNT}"), ([1, 1], "each once"), (["a"], "whole numbers")):
        with pytest.raises(LoaderConfigError, match=message):
            load(endpoint, split=wrong)


def test_a_server_that_is_killed_and_comes_back_costs_time_only(database) -> None:
    with load(database.table().endpoint, timeout_s=60) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch) for _ in range(3)]
        database.signal(signal.SIGKILL)
        restarted = after(0.5, database.restart)
        batches += epoch
        restarted.join()
        assert ids_of(batches) == list(range(COUNT))
        assert loader.stats().details["asked_again"]
        assert ids_of(list(loader.epoch(1))) == list(range(COUNT))


@pytest.mark.slow
def test_a_server_that_stops_for_a_while_costs_time_only(database) -> None:
    with load(database.table().endpoint, timeout_s=30, out_of_order=False) as loader:
        epoch = loader.epoch(0)
        batches = [next(epoch) for _ in range(3)]
        database.signal(signal.SIGSTOP)
        goes_on = after(3, lambda: database.signal(signal.SIGCONT))
        batches += epoch
        goes_on.join()
        assert ids_of(batches) == list(range(COUNT))


@pytest.mark.slow
def test_a_server_that_stays_silent_or_dead_is_named_in_time(database) -> None:
    table = database.table()
    where = rf"127.0.0.1:{table.port}: no row of {KEYSPACE}.{table.name} came for 2 s.*sample_id=\d+"
    for number in (signal.SIGSTOP, signal.SIGKILL):
        with load(table.endpoint, timeout_s=2) as loader:
            epoch = loader.epoch(0)
            next(epoch)
            database.signal(number)
            began = time.monotonic()
            with pytest.raises(StreamError, match=where):
                list(epoch)
            assert time.monotonic() - began < 10
            # Of 16 rows each is asked for 20 times or more where the time between does not grow.
            assert loader.stats().details["asked_again"] < 16 * 8
            if number == signal.SIGSTOP:
                with pytest.raises(StreamError, match=f"127.0.0.1:{table.port}: no database answers"):
                    load(table.endpoint, timeout_s=1)
                database.signal(signal.SIGCONT)
    with pytest.raises(StreamError, match=f"127.0.0.1:{table.port}: no database answers"):
        load(table.endpoint)
    database.restart()


def test_a_row_that_is_missing_or_wrong_is_named(database) -> None:
    table, key = database.table(), sample_uuid(42)
    name = f"{KEYSPACE}.{table.name}"
    with open_session(table.host, table.port, None) as session:
        ((*values, record),) = session.execute(session.prepare(table.select), (key,))
        changed = record[:40] + bytes([record[40] ^ 1]) + record[41:]
        for statement, given, wrong in (
            (f"DELETE FROM {name} WHERE sample = ?", (), "is missing"),
            (f"DELETE label FROM {name} WHERE sample = ?", (), "is only half there"),
            (f"UPDATE {name} SET sample_id = ? WHERE sample = ?", (7,), "has the id 7"),
            (f"UPDATE {name} SET file = ? WHERE sample = ?", (1_000_000,), "has a file of"),
            (f"UPDATE {name} SET record = ? WHERE sample = ?", (b"",), "has a file of"),
            (f"UPDATE {name} SET record = ? WHERE sample = ?", (changed,), "is damaged"),
        ):
            session.execute(session.prepare(statement), (*given, key))
            message = f"row sample_id=42 of {name} at 127.0.0.1:{table.port} {wrong}.*prepare it again"
            with load(table.endpoint) as loader, pytest.raises(StreamError, match=message):
                list(loader.epoch(0))
            if given == (changed,):
                with load(table.endpoint, verify=False) as loader:
                    assert ids_of(list(loader.epoch(0))) == list(range(COUNT))
            session.execute(session.prepare(table.insert), (key, *values, record))


def test_a_dataset_that_is_missing_or_of_other_types_is_named(database) -> None:
    table = database.table()
    name = f"{KEYSPACE}.{table.name}"
    with pytest.raises(StreamError, match=rf"there is no dataset {KEYSPACE}\.other"):
        load(DatabaseTable(table.host, table.port, KEYSPACE, "other").endpoint)
    with pytest.raises(StreamError, match=r"dataset nowhere\.other cannot be found"):
        load(DatabaseTable(table.host, table.port, "nowhere", "other").endpoint)
    database.execute(table.mark, table.name, "cassandra-0", COUNT, 1, "")
    with pytest.raises(StreamError, match=f"{name} has the form 'cassandra-0', expected cassandra-1"):
        load(table.endpoint)
    database.execute(table.mark, table.name, "cassandra-1", COUNT, 1, "")
    database.execute(f"ALTER TABLE {name} DROP size")
    with pytest.raises(StreamError, match=f"table {name} cannot be read.*size"):
        load(table.endpoint)
    database.execute(f"DROP TABLE {name}")
    database.execute(
        f"CREATE TABLE {name} (sample uuid PRIMARY KEY, sample_id bigint, label text, file int, size int, record blob)"
    )
    with pytest.raises(StreamError, match=f"column label of {name} has the type varchar, expected bigint"):
        load(table.endpoint)


@pytest.mark.slow
def test_a_table_that_is_dropped_in_mid_epoch_ends_it(database) -> None:
    table = database.table()
    with load(table.endpoint) as loader:
        epoch = loader.epoch(0)
        next(epoch)
        database.execute(f"DROP TABLE {KEYSPACE}.{table.name}")
        with pytest.raises(StreamError, match=r"row sample_id=\d+ of .* was refused"):
            list(epoch)


def test_rows_of_an_epoch_that_was_broken_off_are_dropped(database) -> None:
    with load(database.table().endpoint, prefetch_batches=30, slow_start=0) as loader:
        for epoch in range(3):
            next(loader.epoch(epoch))
            assert ids_of(list(loader.epoch(10 + epoch))) == list(range(COUNT))
        assert loader.stats().details["late"]


@orders
def test_the_next_epochs_first_rows_come_before_it_begins_and_no_row_twice(database, out_of_order) -> None:
    endpoint, options = database.table().endpoint, {"slow_start": 0, "out_of_order": out_of_order}
    with load(endpoint, **options) as usual:
        assert "next epoch" not in usual.notes[-1]
        assert ids_of([*usual.epoch(0), *usual.epoch(1)]) == sorted([*range(COUNT), *range(COUNT)])
        assert usual.stats().details["early_bytes"] == 0
    with load(endpoint, across_epochs=True, **options) as loader:
        assert "next epoch" in loader.notes[-1]
        for epoch in range(3):
            assert ids_of(list(loader.epoch(epoch))) == list(range(COUNT))
            deadline = time.monotonic() + 30
            while len(loader._fetch.following._under_way) and time.monotonic() < deadline:
                time.sleep(0.01)
        stats = loader.stats().details
        assert loader._fetch.following._asked == 2 * 8, "as many as the prefetch has room for"
        assert 0 < stats["early_bytes"] < stats["wire_bytes"]
        assert stats["late"] == 0
        # Another epoch than that of which rows were asked for.
        assert ids_of(list(loader.epoch(7))) == list(range(COUNT))
        assert ids_of(list(loader.epoch(8))) == list(range(COUNT))
        assert loader.stats().details["asked_again"] == 0


def test_arguments_that_cannot_be_are_refused_by_name() -> None:
    for wrong, message in (
        ({"endpoint": "tcp://127.0.0.1:1"}, "endpoint='tcp://127.0.0.1:1': expected cassandra://HOST:PORT/"),
        ({"in_flight": 32_001}, "in_flight=32001: .*from 1 to 32000"),
        ({"out_of_order": "yes"}, "out_of_order='yes'"),
        ({"keys": 3}, "keys=3"),
    ):
        with pytest.raises(LoaderConfigError, match=message):
            load(**{"endpoint": "cassandra://127.0.0.1:1/a.b", **wrong})


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(StreamError, match=r"^none\.invalid: .*expected the name or address of a server"):
        load("cassandra://none.invalid/a.b")


def test_a_forked_process_is_told_to_make_its_own(database) -> None:
    with load(database.table().endpoint) as loader:
        child = os.fork()
        if not child:
            try:
                next(loader.epoch(0))
            except LoaderError as error:
                os._exit(7 if "another process" in str(error) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ids_of(list(loader.epoch(0))) == list(range(COUNT))


def test_the_prefetch_asks_for_five_with_four_taken_until_it_is_full() -> None:
    options = NoSQLOptions(batch_size=32, seed=0)
    asked = [taken + options.depth(taken) for taken in (0, 128, 256, 1536, 1537, 4000)]
    assert asked == [128, 128 + 160, 256 + 192, 1536 + 512, 1537 + 512, 4000 + 512]
    assert NoSQLOptions(batch_size=32, seed=0, slow_start=0).depth(0) == 512
