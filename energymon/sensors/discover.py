"""Finds what this host can measure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from energymon.errors import EnergyError, OptionError, SensorError
from energymon.reading import COUNTERS, Domain
from energymon.sensors import perf, powercap
from energymon.sensors.base import Discovery, Missing, Part
from energymon.sensors.boards import ALL
from energymon.sensors.estimate import IDLE_FRACTION, EstimateSensor
from energymon.sensors.nvml import open_nvml
from energymon.sensors.rapl_sensor import SETTLE_S, unread

SENSORS: Final[tuple[str, ...]] = ("perf", "powercap", "nvml")
"""The sensors that measure. The first two are RAPL's interfaces: unless they are named, the better one is taken, in
the domains that both agree on; those that are named are taken as they are."""

_MAX_DELAY_S: Final = 1.0


class SensorConfig(NamedTuple):
    """Which sensors are wanted, and where they are looked for."""

    sensors: tuple[str, ...] = ()
    """Names from SENSORS that must be found; empty takes whatever is there."""
    estimate: bool = False
    """Whether CPU energy is estimated where no sensor measures it."""
    cpu_tdp_w: float | None = None
    """TDP of all sockets together, W; None is a default per logical CPU."""
    cpu_idle_fraction: float = IDLE_FRACTION
    sysfs: Path = Path("/sys")
    boards: str = ALL
    """Which boards, as boards.choose_boards takes them; "" opens none."""
    nvml: Path | None = None
    """NVML's library; None takes the driver's."""
    delays_s: Mapping[str, float] = MappingProxyType({})
    """How much older than its update a counter's value may be, s, by source; 0 for the others."""
    wall: tuple[str, ...] = ()
    """Meters of the whole machine that must be found, as --wall names them; several are added up."""
    wall_auth: Path | None = None
    """File with USER:PASSWORD of a Redfish service; None takes the environment's."""
    wall_ca: Path | None = None
    """Certificates to trust for https, PEM; None takes the system's."""

    def check(self) -> None:
        """Raise OptionError for a setting that cannot be meant."""
        unknown = sorted(set(self.sensors) - set(SENSORS))
        if unknown:
            raise OptionError(f"--sensors names {', '.join(unknown)}: expected auto or some of {', '.join(SENSORS)}")
        if self.cpu_tdp_w is not None and not 0 < self.cpu_tdp_w < 1e6:
            raise OptionError(f"--cpu-tdp-w {self.cpu_tdp_w}: expected watts above 0")
        if not 0 <= self.cpu_idle_fraction <= 1:
            raise OptionError(f"--cpu-idle-fraction {self.cpu_idle_fraction}: expected 0 to 1")
        if len(self.wall) > 1 and not all(one.startswith(("tasmota:", "shelly:")) for one in self.wall):
            raise OptionError("--wall: expected one meter, or a plug for each of the machine's supplies")
        for source, delay_s in self.delays_s.items():
            if source not in COUNTERS or not 0 <= delay_s <= _MAX_DELAY_S:
                raise OptionError(
                    f"--delay-ms {source}={delay_s * 1e3:g}: expected one of {', '.join(COUNTERS)}, and 0 to "
                    f"{_MAX_DELAY_S * 1e3:.0f} ms"
                )


def discover(config: SensorConfig, interval_ns: int, *, settles: bool = True) -> Discovery:
    """Open the sensors that `config` asks for.

    To see which counters rest or repeat others, and how often they are updated, takes some tenths of a second; it is
    left out unless it `settles`. Raises SensorError when one that was named is missing, and OptionError.
    """
    config.check()
    settle_s = SETTLE_S if settles else 0.0
    openers: Mapping[str, Callable[[], Discovery]] = {
        "rapl": lambda: open_rapl(config.sysfs, settle_s),
        "perf": lambda: perf.open_perf(config.sysfs, settle_s=settle_s),
        "powercap": lambda: powercap.open_powercap(config.sysfs, settle_s=settle_s),
        "nvml": lambda: open_nvml(interval_ns, config.nvml, config.boards, settles=settles),
    }
    wanted = [name for name in SENSORS if name in config.sensors] or ["rapl", *(["nvml"] if config.boards else [])]
    opened = {name: openers[name]() for name in wanted}
    sensors = [sensor for discovery in opened.values() for sensor in discovery.sensors]
    missing = tuple(gap for discovery in opened.values() for gap in discovery.missing)
    try:
        if config.wall:  # its clients take as long to import as all else
            from energymon.sensors.meters import open_meter
            from energymon.sensors.wall import WallSensor
        for source in config.wall:
            sensors.append(WallSensor(open_meter(source, config.sysfs, config.wall_auth, config.wall_ca)))
        if lacking := [name for name in config.sensors if not opened[name].sensors]:
            reasons = "; ".join(str(gap) for gap in missing if gap.sensor in lacking)
            raise SensorError(f"sensor {', '.join(lacking)} was asked for and cannot be read: {reasons}")
    except EnergyError:
        Discovery(tuple(sensors)).close()
        raise
    for sensor in sensors:
        sensor.delay(config.delays_s)
    # A module's counter holds its CPU already.
    covered = any(sensor.describe().get("module_power") for sensor in sensors)
    if config.estimate and not covered and not any(c.domain == "cpu" for sensor in sensors for c in sensor.channels):
        sensors.insert(0, EstimateSensor(tdp_w=config.cpu_tdp_w, idle_fraction=config.cpu_idle_fraction))
    gpus = opened.get("nvml", Discovery(()))
    return Discovery(tuple(sensors), missing, gpus.boards, gpus.unsampled)


def open_rapl(sysfs: Path, settle_s: float = SETTLE_S) -> Discovery:
    """Open RAPL by whichever of the kernel's two interfaces can be read, in the domains that both agree on.

    Perf events come first: 64 bits without wraps, and all of a socket in one system call. Powercap is read where perf
    cannot be, and its list of domains confirms perf's, readable or not. A domain that only one of two lists has is left
    out, and a list that stands alone is taken as it is. Domains that are lacking, and the better interface where it
    cannot be read, are in `missing`.
    """
    in_perf, in_powercap = set(perf.domains(sysfs)), set(powercap.domains(sysfs))
    agreed = in_perf & in_powercap if in_perf and in_powercap else in_perf | in_powercap
    left_out = tuple(
        Missing(
            name,
            f"{domain} of {device} is in {name}'s list alone and is left out",
            f"`--sensors {name}` takes that list as it is; check its figures against another meter",
            unread((device, domain), agreed),
        )
        for name, alone in (("perf", in_perf - agreed), ("powercap", in_powercap - agreed))
        for device, domain in sorted(alone)
    )
    left_out += tuple(_unlisted(sysfs, in_perf | in_powercap))
    if left_out and not agreed:
        return Discovery((), left_out)
    by_perf = perf.open_perf(sysfs, agreed, settle_s, "powercap" if in_powercap else None)
    if by_perf.sensors:
        return Discovery(by_perf.sensors, (*by_perf.missing, *left_out))
    by_powercap = powercap.open_powercap(sysfs, agreed, settle_s, "perf" if in_perf else None)
    if in_powercap:
        # Powercap is read, so powercap says what can be read and what cannot.
        by_perf = by_perf._replace(missing=tuple(gap._replace(parts=()) for gap in by_perf.missing))
    return Discovery(by_powercap.sensors, (*by_perf.missing, *by_powercap.missing, *left_out))


def _unlisted(sysfs: Path, listed: Collection[Part]) -> Iterator[Missing]:
    """Yield the packages and DRAMs that others of their kind are listed without."""
    sockets = [(device.partition("-die-")[0], domain) for device, domain in listed]
    expected: list[tuple[Domain, set[str], str]] = [
        ("cpu", _sockets(sysfs), "has CPUs and is in no list"),
        ("dram", {socket for socket, _ in sockets}, "is without DRAM in every list"),
    ]
    for domain, whole, lacks in expected:
        there = {socket for socket, of in sockets if of == domain}
        # Compared by number, for older kernels number packages in their own way.
        if 0 < len(there) < len(whole):
            for socket in sorted(whole - there)[: len(whole) - len(there)]:
                yield Missing(
                    "rapl",
                    f"{socket} {lacks} of perf's or powercap's, unlike {', '.join(sorted(there))}",
                    "give the agent all of the host's /sys, or report it with the kernel's version",
                    ((socket, domain),),
                )


def _sockets(sysfs: Path) -> set[str]:
    """Return the packages that the kernel places CPUs in, as the lists name them."""
    found: set[str] = set()
    for file in (sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*/topology/physical_package_id"):
        with suppress(OSError, ValueError):  # a CPU that goes offline takes its topology along
            if (number := int(file.read_text())) >= 0:
                found.add(f"package-{number}")
    return found
