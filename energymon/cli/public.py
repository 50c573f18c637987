"""What the package shows, imported when the first of it is asked for: `energymon exec` is to start at once."""

# ruff: noqa: PLC0414 - a name that is imported as itself belongs to the package

from energymon.agent.cpu_time import AttributedEnergy as AttributedEnergy
from energymon.agent.direct import Meter as Meter
from energymon.agent.measure import measure as measure
from energymon.agent.process import Agent as Agent
from energymon.agent.window import Window as Window
from energymon.analysis.accuracy import Accuracy as Accuracy
from energymon.analysis.attribution import Channels as Channels
from energymon.analysis.attribution import EnergyComponent as EnergyComponent
from energymon.analysis.attribution import NodeEnergy as NodeEnergy
from energymon.analysis.attribution import add_up as add_up
from energymon.analysis.attribution import channels_of as channels_of
from energymon.analysis.attribution import divide_cpu_joules as divide_cpu_joules
from energymon.analysis.attribution import energy_of as energy_of
from energymon.analysis.integrate import Energy as Energy
from energymon.analysis.integrate import joules as joules
from energymon.analysis.integrate import missed_share as missed_share
from energymon.analysis.integrate import missed_ticks as missed_ticks
from energymon.analysis.query import WindowEnergy as WindowEnergy
from energymon.analysis.query import amount_of as amount_of
from energymon.analysis.query import query as query
from energymon.analysis.tuples import stored_tuples as stored_tuples
from energymon.cli.export import save_readings as save_readings
from energymon.errors import AgentError as AgentError
from energymon.errors import EnergyError as EnergyError
from energymon.errors import NoSensorError as NoSensorError
from energymon.errors import OptionError as OptionError
from energymon.errors import SensorError as SensorError
from energymon.errors import StoreError as StoreError
from energymon.errors import WindowError as WindowError
from energymon.reading import INTERPOLATED as INTERPOLATED
from energymon.reading import START as START
from energymon.reading import Baseline as Baseline
from energymon.reading import ClockOffset as ClockOffset
from energymon.reading import Domain as Domain
from energymon.reading import EpochMark as EpochMark
from energymon.reading import Event as Event
from energymon.reading import Reading as Reading
from energymon.reading import Session as Session
from energymon.reading import Ticks as Ticks
from energymon.sampling.edges import Asker as Asker
from energymon.store import SqliteStore as SqliteStore
