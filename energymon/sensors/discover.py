"""Finds what this host can measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from energymon.errors import OptionError, SensorError
from energymon.reading import COUNTERS, ESTIMATE
from energymon.sensors.base import Discovery, Missing, Part, Sensor, wrapping
from energymon.sensors.estimate import IDLE_FRACTION, EstimateSensor
from energymon.sensors.nvml import open_nvml
from energymon.sensors.perf import open_perf
from energymon.sensors.powercap import domains as powercap_domains
from energymon.sensors.powercap import open_powercap
from energymon.sensors.rapl import open_rapl

SENSORS: Final[tuple[str, ...]] = ("perf", "powercap", "nvml")
"""The sensors that measure. The first two are RAPL's interfaces: unless they are named, the better one is taken, in
the domains that both agree on; one that is named is taken as it is, and both are when both are named."""

_MAX_DELAY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SensorConfig:
    """Which sensors are wanted, and where they are looked for."""

    sensors: tuple[str, ...] = ()
    """Names from SENSORS that must be found; empty takes whatever is there."""
    estimate: bool = False
    """Whether CPU energy is estimated where no sensor measures it."""
    cpu_tdp_w: float | None = None
    """TDP of all sockets together, W; None is a default per logical CPU."""
    cpu_idle_fraction: float = IDLE_FRACTION
    sysfs: Path = Path("/sys")
    nvml: Path | None = None
    """NVML's library; None takes the driver's."""
    delays_s: Mapping[str, float] = field(default_factory=dict)
    """How much older than its update a counter's value may be, s, by source; 0 for the others."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.sensors) - set(SENSORS))
        if unknown:
            raise OptionError(f"--sensors names {', '.join(unknown)}: expected auto or some of {', '.join(SENSORS)}")
        if self.cpu_tdp_w is not None and not 0 < self.cpu_tdp_w < 1e6:
            raise OptionError(f"--cpu-tdp-w {self.cpu_tdp_w}: expected watts above 0")
        if not 0 <= self.cpu_idle_fraction <= 1:
            raise OptionError(f"--cpu-idle-fraction {self.cpu_idle_fraction}: expected 0 to 1")
        for source, delay_s in self.delays_s.items():
            if source not in COUNTERS or not 0 <= delay_s <= _MAX_DELAY_S:
                raise OptionError(
                    f"--delay-ms {source}={delay_s * 1e3:g}: expected one of {', '.join(COUNTERS)}, and 0 to "
                    f"{_MAX_DELAY_S * 1e3:.0f} ms"
                )


@dataclass(frozen=True, slots=True)
class FoundSensors:
    """The sensors of this host, and what is missing with reason and remedy."""

    sensors: tuple[Sensor, ...]
    missing: tuple[Missing, ...]

    @property
    def unreadable(self) -> dict[Part, Missing]:
        """The parts that were found, that no sensor reads, and that leave their domain unknown, and why.

        An estimate of a domain of which nothing is measured is one of all of it.
        """
        channels = [channel for sensor in self.sensors for channel in sensor.channels]
        covered = {(channel.device, channel.domain) for channel in channels}
        estimated = {channel.domain for channel in channels if channel.source == ESTIMATE}
        return {
            part: gap for gap in self.missing for part in gap.parts if part not in covered and part[1] not in estimated
        }

    def unknown(self, interval_ns: int) -> dict[Part, str]:
        """Return the parts that have no figure at ticks of `interval_ns`, so that their domain has none, and why."""
        return {part: str(gap) for part, gap in self.unreadable.items()} | wrapping(self.sensors, interval_ns)

    def close(self) -> None:
        """Close every sensor."""
        for sensor in self.sensors:
            sensor.close()


def discover(config: SensorConfig, interval_ns: int) -> FoundSensors:
    """Open the sensors that `config` asks for.

    Raises SensorError when one that was named is missing.
    """
    openers: Mapping[str, Callable[[], Discovery]] = {
        "rapl": lambda: open_rapl(config.sysfs),
        "perf": lambda: open_perf(config.sysfs, zones=powercap_domains(config.sysfs)),
        "powercap": lambda: open_powercap(config.sysfs),
        "nvml": lambda: open_nvml(interval_ns, config.nvml),
    }
    wanted = [name for name in SENSORS if name in config.sensors] or ["rapl", "nvml"]
    opened = {name: openers[name]() for name in wanted}
    sensors = [sensor for discovery in opened.values() for sensor in discovery.sensors]
    missing = tuple(gap for discovery in opened.values() for gap in discovery.missing)
    for sensor in sensors:
        sensor.delay(config.delays_s)
    lacking = [name for name in config.sensors if not opened[name].sensors]
    if lacking:
        FoundSensors(tuple(sensors), ()).close()
        reasons = "; ".join(str(gap) for gap in missing if gap.sensor in lacking)
        raise SensorError(f"sensor {', '.join(lacking)} was asked for and cannot be read: {reasons}")
    # A module's counter holds its CPU already.
    covered = any(sensor.describe().get("module_power") for sensor in sensors)
    if config.estimate and not covered and not any(c.domain == "cpu" for sensor in sensors for c in sensor.channels):
        sensors.insert(0, EstimateSensor(tdp_w=config.cpu_tdp_w, idle_fraction=config.cpu_idle_fraction))
    return FoundSensors(tuple(sensors), missing)
