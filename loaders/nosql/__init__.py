"""Loading from a Cassandra-compatible database.

Public names: the loader (`NoSQLLoader`), the daemon of an experiment (`DaemonOptions`, `make_keys`, `FORM`, `SERVER`,
`prepare`), and a server of this machine (`CassandraServer`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from loaders.nosql.form import prepare
    from loaders.nosql.keys import make_keys
    from loaders.nosql.loader import NoSQLLoader
    from loaders.nosql.options import SERVER, DaemonOptions
    from loaders.nosql.schema import FORM
    from loaders.nosql.server.process import CassandraServer

__all__ = ["FORM", "SERVER", "CassandraServer", "DaemonOptions", "NoSQLLoader", "make_keys", "prepare"]

# Imported when asked for: the server needs no torch, and a loader no server.
_MODULES: Final = {
    "FORM": "schema",
    "SERVER": "options",
    "CassandraServer": "server.process",
    "DaemonOptions": "options",
    "NoSQLLoader": "loader",
    "make_keys": "keys",
    "prepare": "form",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"loaders.nosql.{_MODULES[name]}"), name)
