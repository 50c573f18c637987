"""energymon's typed errors; every message says what, where, what it expected and what to do."""

from __future__ import annotations

from typing import ClassVar


class EnergyError(Exception):
    """Base of every error that energymon raises on purpose."""

    code: ClassVar[str] = "error"
    """What an agent's line of JSON has as its `error`, for the program that started it."""


class OptionError(EnergyError):
    """An option of the agent or of a query has a value that cannot be used."""

    code = "config"


class SensorError(EnergyError):
    """No sensor, or not the one that was asked for, can be read on this host."""

    code = "sensor"


class NoSensorError(SensorError):
    """Nothing on this host measures energy."""

    code = "no-sensor"


class CounterError(EnergyError):
    """A counter's value cannot be its true one; nothing is added until it can."""


class StoreError(EnergyError):
    """A store cannot be opened, written or read."""

    code = "store"


class WindowError(EnergyError):
    """A window has no figure: it ends before it starts, is still open, or no series covers it."""


class ClockError(EnergyError):
    """A clock's offset cannot be measured, or another host cannot be let measure it."""


class AgentError(EnergyError):
    """The process that samples did not start, or is gone."""
