"""A session of the database driver for a few statements, and the errors of the driver as this package's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from joulefeed.version import remedy
from loaders.errors import LoaderConfigError, StreamError
from loaders.nosql.keys import Login


def missing_driver(error: ImportError) -> LoaderConfigError:
    """Return the error that says that the driver is not installed, or cannot be imported."""
    return LoaderConfigError(f"the driver cannot be imported ({error}){remedy(error)}")


def make_cluster(host: str, port: int, login: Login | None, *, timeout_s: float, profile: Any, **options: Any) -> Any:
    """Return the driver's object of the cluster at an address, not connected; `profile` has the policies of requests.

    Raises StreamError for a host whose name leads to no address, which the driver does not name.
    """
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster

    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise StreamError(
            f"{host}: {error.strerror}: expected the name or address of a server of the database"
        ) from error
    return Cluster(
        [host],
        port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        auth_provider=None if login is None else PlainTextAuthProvider(login.user, login.password),
        ssl_context=None if login is None else login.context,
        connect_timeout=timeout_s,
        control_connection_timeout=timeout_s,
        # Version 5 adds checksummed segments, which cost 1 s of CPU per GB here.
        protocol_version=4,
        **options,
    )


def connect(cluster: Any, where: str, login: Login | None) -> Any:
    """Return a session of the cluster at `where`, HOST:PORT; raises StreamError where it does not answer or refuses."""
    from cassandra import AuthenticationFailed, DriverException
    from cassandra.cluster import NoHostAvailable

    try:
        return cluster.connect()
    except (NoHostAvailable, DriverException, OSError) as error:
        causes = list(error.errors.values()) if isinstance(error, NoHostAvailable) else []
        if any(isinstance(cause, AuthenticationFailed) for cause in causes):
            what = "it asks for a password" if login is None else f"it refused the password of role {login.user!r}"
            raise StreamError(f"{where}: {what}; give the client's folder of keys of this server") from error
        raise StreamError(
            f"{where}: no database answers ({(causes or [error])[0]}); check that it runs and listens there, and "
            "whether it asks for keys"
        ) from error


@contextmanager
def open_session(host: str, port: int, login: Login | None, *, timeout_s: float = 30.0) -> Iterator[Any]:
    """Connect to the server at an address, alone, and yield the driver's session; requests wait for `timeout_s`.

    Raises StreamError where it cannot be reached or refuses, and where a statement of the block fails, and
    LoaderConfigError where there is no driver.
    """
    try:
        from cassandra import DriverException
        from cassandra.cluster import ExecutionProfile, NoHostAvailable
        from cassandra.policies import WhiteListRoundRobinPolicy
    except ImportError as error:
        raise missing_driver(error) from error

    profile = ExecutionProfile(WhiteListRoundRobinPolicy([host]), request_timeout=timeout_s)
    cluster = make_cluster(host, port, login, timeout_s=timeout_s, profile=profile)
    try:
        yield connect(cluster, f"{host}:{port}", login)
    except (DriverException, NoHostAvailable) as error:
        raise StreamError(f"{host}:{port}: {type(error).__name__}: {error}") from error
    finally:
        cluster.shutdown()
