"""Joules on one host: sensors sampled on a shared grid of ticks, kept in a store, integrated over windows."""

from __future__ import annotations

from energymon.errors import ConfigError, EnergyError, SensorError, StoreError, WindowError
from energymon.query import WindowEnergy, query
from energymon.reading import INTERPOLATED, LAG_S, START, Event, Reading, Tick
from energymon.stores.sqlite import Session, SqliteStore
from energymon.window import Energy, joules, missed_share

__all__ = [
    "INTERPOLATED",
    "LAG_S",
    "START",
    "ConfigError",
    "Energy",
    "EnergyError",
    "Event",
    "Reading",
    "SensorError",
    "Session",
    "SqliteStore",
    "StoreError",
    "Tick",
    "WindowEnergy",
    "WindowError",
    "joules",
    "missed_share",
    "query",
]
