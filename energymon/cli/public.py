"""What the package shows, imported when the first of it is asked for: `energymon exec` is to start at once."""

from __future__ import annotations

from energymon.agent.cpu_time import AttributedEnergy
from energymon.agent.direct import Meter
from energymon.agent.measure import measure
from energymon.agent.process import Agent
from energymon.agent.window import Window
from energymon.analysis.accuracy import Accuracy
from energymon.analysis.attribution import (
    Channels,
    EnergyComponent,
    NodeEnergy,
    add_up,
    channels_of,
    divide_cpu_joules,
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
    "AttributedEnergy",
    "Baseline",
    "Channels",
    "ClockOffset",
    "Domain",
    "Energy",
    "EnergyComponent",
    "EnergyError",
    "EpochMark",
    "Event",
    "Meter",
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
    "divide_cpu_joules",
    "energy_of",
    "joules",
    "measure",
    "missed_share",
    "missed_ticks",
    "query",
    "save_readings",
    "stored_tuples",
]
