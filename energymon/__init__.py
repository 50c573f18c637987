"""Joules on one host: sensors sampled on a shared grid of ticks, kept in a store, integrated over windows."""

from __future__ import annotations

from energymon.agent.window import Agent, Window
from energymon.analysis.attribution import (
    Channels,
    Component,
    NodeEnergy,
    best_sources,
    channels_of,
    energy_of,
    series_of,
)
from energymon.analysis.baseline import NetEnergy, baseline_of
from energymon.analysis.integrate import Energy, joules, missed_share, missed_ticks
from energymon.analysis.query import WindowEnergy, query, total
from energymon.analysis.restarts import bridged
from energymon.analysis.tuples import EnergyTuple, stored_tuples, tuples
from energymon.cli.export import export, save_readings
from energymon.cli.render import render
from energymon.clock.monotonic import boot_ns
from energymon.errors import (
    NO_SENSOR,
    AgentError,
    ClockError,
    ConfigError,
    EnergyError,
    NoSensorError,
    SensorError,
    StoreError,
    WindowError,
)
from energymon.reading import (
    DIRECTNESS,
    INTERPOLATED,
    LAG_S,
    START,
    Baseline,
    ClockOffset,
    Domain,
    EpochMark,
    Event,
    Reading,
    Tick,
)
from energymon.sampling.edges import Asker
from energymon.stores.base import Session, Store, open_store
from energymon.stores.sqlite import SqliteStore

__all__ = [
    "DIRECTNESS",
    "INTERPOLATED",
    "LAG_S",
    "NO_SENSOR",
    "START",
    "Agent",
    "AgentError",
    "Asker",
    "Baseline",
    "Channels",
    "ClockError",
    "ClockOffset",
    "Component",
    "ConfigError",
    "Domain",
    "Energy",
    "EnergyError",
    "EnergyTuple",
    "EpochMark",
    "Event",
    "NetEnergy",
    "NoSensorError",
    "NodeEnergy",
    "Reading",
    "SensorError",
    "Session",
    "SqliteStore",
    "Store",
    "StoreError",
    "Tick",
    "Window",
    "WindowEnergy",
    "WindowError",
    "baseline_of",
    "best_sources",
    "boot_ns",
    "bridged",
    "channels_of",
    "energy_of",
    "export",
    "joules",
    "missed_share",
    "missed_ticks",
    "open_store",
    "query",
    "render",
    "save_readings",
    "series_of",
    "stored_tuples",
    "total",
    "tuples",
]
