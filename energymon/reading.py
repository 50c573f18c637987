"""What a store has: cumulative joules of one device at one tick, and the ticks themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

Domain = Literal["cpu", "dram", "gpu", "module", "wall"]
"""A module holds the CPU, the memory and the GPU of a board such as a GH200, and the wall the whole machine: their
joules contain those of the others and are not added to them."""
WHOLES = ("module", "wall")

WALL_S = 1.0
"""The least time between two questions to a meter at the wall, s."""
WALL_MARGIN_S = 3 * WALL_S
"""Around the edges of a window, for answers of such a meter, s."""

START = "start"
"""Flag of a series' first reading after the agent or the counter started again; the energy across it is unknown."""
INTERPOLATED = "interpolated"
"""Flag of a reading whose joules since the one before it are inferred across missed ticks, not counted."""

LAG_S: Mapping[str, float] = MappingProxyType(
    {
        "rapl-perf": 0.001,
        "rapl-powercap": 0.001,
        "nvml-counter": 0.1,
        "nvml-power": 0.1,
        "nvml-power-average": 1.0,
        **dict.fromkeys(("hwmon-energy", "redfish-energy", "tasmota-energy", "shelly-energy"), 2 * WALL_S),
        **dict.fromkeys(("hwmon-power", "tasmota-power", "shelly-power"), 2 * WALL_S),
        **dict.fromkeys(("redfish-power", "ipmi-power"), 10.0),
    }
)
"""How old, in seconds, the value that a sensor shows may be, by source; estimates have no entry.

RAPL adds about every 1 ms (Intel SDM vol. 3B, 15.10); NVML's counter and instant power every 20 to 100 ms, and its
average power is of the last second (arXiv 2312.02741). Of meters at the wall it is an assumption.
"""

COUNTERS = ("rapl-perf", "rapl-powercap", "nvml-counter", *(name for name in LAG_S if name.endswith("-energy")))
"""The sources that count energy. Of none is it documented that a value is older than its update, so no delay is
assumed; `--delay-ms` takes one that is known."""

ESTIMATE = "estimate"
"""The source that measures nothing."""

DIRECTNESS = (*COUNTERS, *(name for name in LAG_S if name not in COUNTERS), ESTIMATE)
"""Sources from the most to the least direct; where several count the same joules, the first is taken."""


class Reading(NamedTuple):
    """One reading of one series; a series is a (node, device, domain, source)."""

    tick_ns: int
    """Tick of the grid that the reading belongs to, UTC ns."""
    t_ns: int
    """When the value was read, UTC ns."""
    node: str
    device: str
    """"package-0", "gpu-1"; a socket's DRAM has the socket's name and domain dram, a module its GPU's."""
    domain: Domain
    source: str
    """One of DIRECTNESS."""
    joules: float
    """Cumulative since the agent started, unwrapped."""
    flags: str = ""
    """"", START or INTERPOLATED."""
    early_ns: int | None = None
    late_ns: int = 0
    """`joules` is what had been used by some instant in [t_ns - early_ns, t_ns + late_ns]: the read call took time, and
    what the sensor showed may have been old by then. early_ns is None where only the source's usual lag is known."""


class Ticks(NamedTuple):
    """Ticks of a node's grid that follow each other, all of them missed or none."""

    first_ns: int
    """UTC ns."""
    node: str
    missed: bool
    """Whether any series of the node lacks its reading."""
    count: int = 1  # type: ignore[assignment] # hides that of tuples
    interval_ns: int = 0
    """Time between two of them, ns."""

    @property
    def last_ns(self) -> int:
        """The last of them, UTC ns."""
        return self.first_ns + (self.count - 1) * self.interval_ns


class ClockOffset(NamedTuple):
    """How far a node's clock was from another's at `t_ns`, UTC ns of the node."""

    t_ns: int
    node: str
    peer: str
    """"controller"; "chrony" or "kernel" for what the node itself believes of UTC; "wall" for its wall clock, stored
    when an agent starts and when it is set."""
    offset_ns: int
    """The peer's clock minus the node's, ns."""
    error_ns: int
    """Bound of the offset's error, ns; of "wall", how long before `t_ns` the clock may have been set."""


class Baseline(NamedTuple):
    """What one series drew while its node was declared idle, from `start_ns` to `end_ns`, UTC ns."""

    node: str
    device: str
    domain: Domain
    source: str
    start_ns: int
    end_ns: int
    watts: float
    error_w: float | None
    """Bound of the error of `watts`, W; None for an estimate."""


class CounterStart(NamedTuple):
    """The hardware counter behind a reading with the flag START, so that a sum across a restart of the agent exists."""

    node: str
    device: str
    domain: Domain
    source: str
    tick_ns: int
    t_ns: int
    """The reading's tick, and when it was taken, UTC ns."""
    boot_ns: int
    """The same by the clock that counts since the machine was booted, ns."""
    boot_id: str
    """Which start of the machine that was."""
    joules: float
    """The reading's cumulative joules."""
    raw: int
    """What the counter showed, in its own units."""
    unit_j: float
    """Joules of one unit."""
    wrap: int | None
    """The counter counts modulo this; None for one that does not wrap in the life of a machine."""
    max_w: float
    """More power than the device can draw, W."""
    counter: str
    """Which counter it is: a file, or a board's UUID."""


class EpochMark(NamedTuple):
    """When an epoch of a training run was, UTC ns by the clock of its node's readings, for graphs of the power."""

    node: str
    run: str
    cell: str
    loader: str
    epoch: int
    start_ns: int
    end_ns: int


class Event(NamedTuple):
    """Something that the user of the readings should know, at `t_ns`, UTC ns."""

    t_ns: int
    node: str
    kind: str
    """"sensor-lost", "sensor-back", "sensor-slow", "counter-restart", "clock-step", "ticks-missed", "store-failed",
    "store-back" or, of a window that is asked for, "load-resonates"."""
    message: str


class Session(NamedTuple):
    """A run of an agent, from its start to its end."""

    name: str
    """Unique on its node: UTC ns of the start and the agent's process id."""
    node: str
    start_ns: int
    """UTC ns."""
    end_ns: int | None
    """UTC ns; None when the agent runs or was killed."""
    interval_ns: int
    cpu_s: float | None
    """CPU time that the agent itself took, s; None when it was killed."""
    description: Mapping[str, object]
    """Sensors, missing sensors, priority and host."""


News: TypeAlias = Event | ClockOffset | Baseline | CounterStart
"""What a store keeps beside readings and ticks."""
