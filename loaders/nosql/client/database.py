"""Sessions with a database, over which samples are asked for by their ids."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from cassandra import DriverException
from cassandra.cluster import Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import ConstantReconnectionPolicy, FallthroughRetryPolicy, RoundRobinPolicy

from joulefeed.closing import Closing
from loaders.errors import LoaderError, StreamError
from loaders.nosql.client.connection import COLUMNS, RecordConnection, SampleRow, make_protocol
from loaders.nosql.keys import Login
from loaders.nosql.schema import FORM, DatabaseTable, sample_uuid
from loaders.nosql.session import connect, make_cluster

Arrived: TypeAlias = Callable[[list[SampleRow]], None]
Failed: TypeAlias = Callable[[Exception], None]

_RECONNECT_S: Final = 0.5
_CONNECTING: Final = 8
"""Threads that open sessions."""


class Database(Closing):
    """Several sessions with one database; each has one connection of its own to every host."""

    def __init__(self, table: DatabaseTable, *, login: Login | None, connections: int, timeout_s: float) -> None:
        """Connect, and find the dataset.

        Raises StreamError naming the host that does not answer or refuses, or the dataset that is missing or not whole.
        """
        self.table, self.timeout_s = table, timeout_s
        self.where = f"{table.host}:{table.port}"
        self._login, self._pid = login, os.getpid()
        # What it logs of a host that is down is in the error of an epoch.
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        self._cluster = self._configure()
        try:
            self._sessions = self._connect(connections)
            self.samples = self._find()
            self._select = self._prepare(self._sessions[0])
        except BaseException:
            self.close()
            raise

    def _configure(self) -> Cluster:
        """Return what the driver knows of the database."""
        profile = ExecutionProfile(
            load_balancing_policy=RoundRobinPolicy(),
            retry_policy=FallthroughRetryPolicy(),
            request_timeout=self.timeout_s,
            row_factory=lambda _, rows: rows,
        )
        return make_cluster(
            self.table.host,
            self.table.port,
            self._login,
            timeout_s=self.timeout_s,
            profile=profile,
            connection_class=RecordConnection,
            compression=False,
            reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, max_attempts=None),
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
        )

    @property
    def connections(self) -> int:
        """Number of sessions."""
        return len(self._sessions)

    def ask(self, connection: int, sample_id: int, arrived: Arrived, failed: Failed) -> None:
        """Ask for a sample over one of the connections; one of the functions is called, by another thread or now."""
        bound = self._select.bind((sample_uuid(sample_id),))
        self._sessions[connection].execute_async(bound).add_callbacks(arrived, failed)

    def check_process(self) -> None:
        """Raise LoaderError in a process that was forked from the one that connected: it has no threads."""
        if os.getpid() != self._pid:
            raise LoaderError("the loader was made in another process, whose connections it has: make a new one here")

    def close(self) -> None:
        """Close the sessions; may be called twice."""
        if os.getpid() == self._pid:
            self._cluster.shutdown()

    def _connect(self, connections: int) -> list[Session]:
        """Return as many sessions."""

        def one(_: int = 0) -> Session:
            return connect(self._cluster, self.where, self._login)

        sessions = [one()]
        with ThreadPoolExecutor(_CONNECTING) as threads:
            sessions += threads.map(one, range(1, connections))
        protocol = make_protocol(self.table)
        for session in sessions:
            session.client_protocol_handler = protocol
        return sessions

    def _find(self) -> int:
        """Return the number of samples of the dataset."""
        session, table = self._sessions[0], self.table
        try:
            query = session.prepare(table.find)
            rows = session.execute(query, (table.name,)).all()
        except (DriverException, NoHostAvailable) as error:
            raise StreamError(
                f"{self.where}: the dataset {table.data} cannot be found ({_brief(error)}); prepare it first"
            ) from error
        if not rows:
            raise StreamError(f"{self.where}: there is no dataset {table.data}; prepare it first")
        form, samples, *_ = rows[0]
        if form != FORM:
            raise StreamError(
                f"{self.where}: the dataset {table.data} has the form {form!r}, expected {FORM}; prepare it again"
            )
        return int(samples)

    def _prepare(self, session: Session) -> Any:
        table = self.table
        try:
            select = session.prepare(table.select)
        except (DriverException, NoHostAvailable) as error:
            raise StreamError(
                f"{self.where}: the table {table.data} cannot be read ({_brief(error)}); prepare it again"
            ) from error
        found = {column[2]: column[3].typename for column in select.result_metadata}
        for name, expected in COLUMNS.items():
            if (kind := found.get(name)) != expected:
                raise StreamError(
                    f"{self.where}: column {name} of {table.data} has the type {kind}, expected "
                    f"{expected}; drop the table and prepare it again"
                )
        return select


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
