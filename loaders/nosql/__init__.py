"""Loading from a Cassandra-compatible database.

Public names: the loader (`NoSQLLoader`), the daemon of an experiment (`DaemonOptions`, `make_keys`, `FORM`, `SERVER`,
`prepare`), and a server of this machine (`CassandraServer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaders.shared.lazy import lazy_names

if TYPE_CHECKING:
    from loaders.nosql.form import prepare
    from loaders.nosql.keys import make_keys
    from loaders.nosql.loader import NoSQLLoader
    from loaders.nosql.options import SERVER, DaemonOptions
    from loaders.nosql.schema import FORM
    from loaders.nosql.server.process import CassandraServer

__all__ = ["FORM", "SERVER", "CassandraServer", "DaemonOptions", "NoSQLLoader", "make_keys", "prepare"]

# Imported when asked for: the server needs no torch, and a loader no server.
__getattr__ = lazy_names(
    __name__,
    {
        "FORM": "nosql.schema",
        "SERVER": "nosql.options",
        "CassandraServer": "nosql.server.process",
        "DaemonOptions": "nosql.options",
        "NoSQLLoader": "nosql.loader",
        "make_keys": "nosql.keys",
        "prepare": "nosql.form",
    },
)
