"""What is stored: cumulative joules of one device at one tick, and the ticks themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = ["INTERPOLATED", "LAG_S", "START", "Domain", "Event", "Reading", "Tick"]

Domain = Literal["cpu", "dram", "gpu"]

START = "start"
"""Flag of a series' first reading after the agent or the counter began anew; what was used across it is
unknown."""
INTERPOLATED = "interpolated"
"""Flag of a reading whose joules since the one before it are inferred across missed ticks, not counted."""

LAG_S: Mapping[str, float] = MappingProxyType({"rapl-powercap": 0.001, "nvml-counter": 0.1, "nvml-power": 1.0})
"""How old, in seconds, the value that a sensor shows may be, by source; estimates have no entry.

RAPL adds about every 1 ms (Intel SDM vol. 3B, 15.10); NVML's counter every 20 to 100 ms and its power is an
average over up to 1 s (arXiv 2312.02741).
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one series; a series is a (node, device, domain, source)."""

    tick_ns: int
    """Tick of the grid that the reading belongs to, UTC ns."""
    t_ns: int
    """When the value was read, UTC ns."""
    node: str
    device: str
    """"package-0", "gpu-1"; a socket's DRAM has the socket's name and domain dram."""
    domain: Domain
    source: str
    """"rapl-powercap", "nvml-counter", "nvml-power" or "estimate"."""
    joules: float
    """Cumulative since the agent started, unwrapped."""
    flags: str = ""
    """"", START or INTERPOLATED."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick of a node's grid."""

    tick_ns: int
    """UTC ns."""
    node: str
    missed: bool
    """Whether any series of the node lacks its reading."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the user of the readings should know."""

    t_ns: int
    """UTC ns."""
    node: str
    kind: str
    """"sensor-lost", "sensor-back", "counter-restart", "clock-step", "ticks-missed", "store-failed" or
    "store-back"."""
    message: str
