"""Joules on one host: sensors sampled on a shared grid of ticks, kept in a store, integrated over windows."""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"]:  # what Python sets while it looks for the module that it is to run
    from joulefeed.signals import begin_program

    begin_program()

from energymon.agent.process import Agent
from energymon.agent.window import Window
from energymon.analysis.accuracy import Accuracy
from energymon.analysis.attribution import (
    Channels,
    EnergyComponent,
    NodeEnergy,
    add_up,
    channels_of,
    energy_of,
)
from energymon.analysis.integrate import Energy, joules, missed_share, missed_ticks
from energymon.analysis.query import WindowEnergy, amount_of, query
from energymon.analysis.tuples import stored_tuples
from energymon.cli.export import save_readings
from energymon.errors import (
    AgentError,
    EnergyError,
    NoSensorError,
    OptionError,
    SensorError,
    StoreError,
    WindowError,
)
from energymon.reading import (
    INTERPOLATED,
    START,
    Baseline,
    ClockOffset,
    Domain,
    EpochMark,
    Event,
    Reading,
    Session,
    Ticks,
)
from energymon.sampling.edges import Asker
from energymon.store import SqliteStore

__all__ = [
    "INTERPOLATED",
    "START",
    "Accuracy",
    "Agent",
    "AgentError",
    "Asker",
    "Baseline",
    "Channels",
    "ClockOffset",
    "Domain",
    "Energy",
    "EnergyComponent",
    "EnergyError",
    "EpochMark",
    "Event",
    "NoSensorError",
    "NodeEnergy",
    "OptionError",
    "Reading",
    "SensorError",
    "Session",
    "SqliteStore",
    "StoreError",
    "Ticks",
    "Window",
    "WindowEnergy",
    "WindowError",
    "add_up",
    "amount_of",
    "channels_of",
    "energy_of",
    "joules",
    "missed_share",
    "missed_ticks",
    "query",
    "save_readings",
    "stored_tuples",
]
