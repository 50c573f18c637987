"""A session of the database driver for a few statements, and the errors of the driver as this package's own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loaders.errors import LoaderConfigError, StreamError


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """Who a client is, and how it encrypts."""

    user: str
    password: str
    context: ssl.SSLContext


def missing_driver(error: ImportError) -> LoaderConfigError:
    """Return the error that says that the driver is not installed, or cannot be imported."""
    return LoaderConfigError(f"the driver cannot be imported ({error}): pip install cassandra-driver")


def check_host(host: str, port: int) -> None:
    """Raise StreamError for a host whose name leads to no address, which the driver does not name."""
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise StreamError(
            f"{host}: {error.strerror}: expected the name or address of a server of the database"
        ) from error


@contextmanager
def open_session(host: str, port: int, login: Login | None, *, timeout_s: float = 30.0) -> Iterator[Any]:
    """Connect to the server at an address, alone, and yield the driver's session; requests wait for `timeout_s`.

    Raises StreamError where it cannot be reached or refuses, and where a statement of the block fails, and
    LoaderConfigError where there is no driver.
    """
    try:
        from cassandra import DriverException
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
        from cassandra.policies import WhiteListRoundRobinPolicy
    except ImportError as error:
        raise missing_driver(error) from error

    check_host(host, port)
    profile = ExecutionProfile(WhiteListRoundRobinPolicy([host]), request_timeout=timeout_s)
    cluster = Cluster(
        [host],
        port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        auth_provider=None if login is None else PlainTextAuthProvider(login.user, login.password),
        ssl_context=None if login is None else login.context,
        connect_timeout=timeout_s,
        control_connection_timeout=timeout_s,
        protocol_version=4,
    )
    try:
        yield cluster.connect()
    except NoHostAvailable as error:
        reasons = " ".join(str(reason) for reason in error.errors.values()) or str(error)
        raise StreamError(
            f"{host}:{port}: the database cannot be reached or refuses the client ({reasons}); check that it runs and "
            "listens there, and whether it asks for keys"
        ) from error
    except DriverException as error:
        raise StreamError(f"{host}:{port}: {type(error).__name__}: {error}") from error
    finally:
        cluster.shutdown()
