"""A store by its name: a file's path, or an InfluxDB server's address."""

from __future__ import annotations

from pathlib import Path

from energymon.errors import ConfigError
from energymon.stores.base import Store

__all__ = ["open_store"]


def open_store(where: str | Path, session: str | None = None) -> Store:
    """Open a store for reading: the file that an agent writes, or http[s]://HOST:PORT of an InfluxDB server.

    Bucket, organisation and token of a server come from INFLUXDB_V2_{BUCKET,ORG,TOKEN,TOKEN_FILE}. `session`, of a
    server, leaves out what other agents wrote for the same node. Raises StoreError, and ConfigError for settings
    that are missing.
    """
    if isinstance(where, str) and "://" in where:
        from energymon.influx.settings import InfluxSettings
        from energymon.influx.store import InfluxStore

        return InfluxStore(InfluxSettings.from_environment(url=where), session)
    from energymon.stores.sqlite import SqliteStore

    if session is not None:
        raise ConfigError(f"{where}: a file has one agent at a time; a session can be chosen of a server only")
    return SqliteStore.open(Path(where))
