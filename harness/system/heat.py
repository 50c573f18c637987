"""Temperatures, clocks and power limits of a host's boards and processors, and what holds their clocks back.

Boards are read through NVML, processors from sysfs (the kernel's admin-guide/pm/cpufreq.rst, hwmon/sysfs-interface.rst
and ABI/testing/sysfs-devices-system-cpu, thermal_throttle).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Self

from energymon.sensors.base import Missing
from energymon.sensors.nvml_library import load

CAPPED: Final = frozenset({"sw_power_cap"})
"""Reasons by which a board keeps to its power limit, as any does under full load."""
SLOWED: Final = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "thermal"}
)
"""Reasons of heat and of the hardware."""
_REASONS: Final = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"),
)
"""nvmlClocksEventReasons (nvml.h), by bit."""
_POLICIES: Final = {"sw_power_cap": 0, "thermal": 1}
"""nvmlPerfPolicyType_t (nvml.h) of the reasons whose time a board counts."""
_SM, _MEMORY, _BOARD = 1, 2, 0
"""nvmlClockType_t and nvmlTemperatureSensors_t."""
_CHIPS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
"""hwmon drivers of processors."""
_ZONES: Final = re.compile("x86_pkg_temp|cpu|soc")
"""Types of the thermal zones of processors, where no hwmon driver is."""
_MAX_CLOCKS: Final = 8
"""Processors of a package whose clock is read: an older kernel takes 10 ms for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """A board, or the processors of a package, at one moment. None is unknown."""

    device: str
    """gpu-0, package-0."""
    uuid: str = ""
    """Of a board."""
    temp_c: float | None = None
    """Of a package the highest of its sensors."""
    clock_mhz: float | None = None
    """Of a board's multiprocessors; of a package the mean of up to 8 processors."""
    memory_clock_mhz: float | None = None
    limit_w: float | None = None
    """The power limit that the board keeps to."""
    reasons: Sequence[str] = ()
    """What holds the clocks back now, as NVML names it."""
    held_s: Mapping[str, float] = field(default_factory=dict)
    """For how long a reason has held the clocks back so far, by reason, as far as the device counts it."""
    held_times: Mapping[str, int] = field(default_factory=dict)
    """How often one has."""


class Heat:
    """Reads the devices of this host, none where there is neither NVML nor a sensor of a processor."""

    def __init__(self, library: Path | None = None, sysfs: Path = Path("/sys")) -> None:
        """Find the devices; `library` takes the place of the driver's NVML."""
        found: Any = load(library)
        self._nvml = None if isinstance(found, Missing) else found
        self._boards: list[Any] = []
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._boards = [found.nvmlDeviceGetHandleByIndex(n) for n in range(found.nvmlDeviceGetCount())]
        self._packages = _find_packages(sysfs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def read(self) -> list[DeviceState]:
        """Return the state of every device."""
        return self.read_boards() + self.read_packages()

    def read_boards(self) -> list[DeviceState]:
        """Return the state of every board, as far as it answers."""
        return [self._read_board(f"gpu-{index}", handle) for index, handle in enumerate(self._boards)]

    def read_packages(self) -> list[DeviceState]:
        """Return the state of the processors by package, of those of which something is known."""
        states = [_read_package(*package) for package in self._packages]
        return [state for state in states if state != DeviceState(device=state.device)]

    def _read_board(self, device: str, handle: Any) -> DeviceState:
        def ask(function: str, *of: int) -> Any:
            assert self._nvml is not None
            try:
                return getattr(self._nvml, function)(handle, *of)
            except self._nvml.NVMLError:
                return None

        bits, limit_mw = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0, ask("nvmlDeviceGetEnforcedPowerLimit")
        held = {name: ask("nvmlDeviceGetViolationStatus", policy) for name, policy in _POLICIES.items()}
        return DeviceState(
            device=device,
            uuid=ask("nvmlDeviceGetUUID") or device,
            temp_c=ask("nvmlDeviceGetTemperature", _BOARD),
            clock_mhz=ask("nvmlDeviceGetClockInfo", _SM),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", _MEMORY),
            limit_w=None if limit_mw is None else limit_mw / 1e3,
            reasons=[name for bit, name in enumerate(_REASONS) if bits >> bit & 1],
            held_s={name: one.violationTime / 1e9 for name, one in held.items() if one is not None},
        )


def _read_package(device: str, cpus: Sequence[Path], sensors: Sequence[Path]) -> DeviceState:
    clocks = _read_all(cpu / "cpufreq/scaling_cur_freq" for cpu in cpus[:: -(-len(cpus) // _MAX_CLOCKS)])
    # Every processor shows the counters of its package too.
    counters = [cpu / "thermal_throttle" / "core_throttle" for cpu in cpus]
    counters.append(cpus[0] / "thermal_throttle" / "package_throttle")
    times, lasted_ms, temps = (
        _read_all(one.with_name(one.name + end) for one in of)
        for of, end in ((counters, "_count"), (counters, "_total_time_ms"), (sensors, ""))
    )
    return DeviceState(
        device=device,
        temp_c=max(temps) / 1e3 if temps else None,
        clock_mhz=fmean(clocks) / 1e3 if clocks else None,
        held_s={"thermal": max(lasted_ms) / 1e3} if lasted_ms else {},
        held_times={"thermal": sum(times)} if times else {},
    )


def _find_packages(sysfs: Path) -> list[tuple[str, list[Path], list[Path]]]:
    """Return the device, the processors and the temperature sensors of each package."""
    cpus: dict[int, list[Path]] = {}
    for cpu in sorted((sysfs / "devices/system/cpu").glob("cpu[0-9]*"), key=lambda cpu: int(cpu.name[3:])):
        cpus.setdefault(max([0, *_read_all([cpu / "topology/physical_package_id"])]), []).append(cpu)
    sensors: dict[int, list[Path]] = {}
    chips = [one for one in sorted((sysfs / "class/hwmon").glob("hwmon*")) if _read_text(one / "name") in _CHIPS]
    for place, chip in enumerate(chips):
        labels = [_read_text(path) for path in chip.glob("temp*_label")]
        number = next((int(label.split()[-1]) for label in labels if label.startswith("Package id ")), place)
        sensors.setdefault(number, []).extend(chip.glob("temp*_input"))
    if not sensors:
        zones = (sysfs / "class/thermal").glob("thermal_zone*")
        sensors[0] = [zone / "temp" for zone in zones if _ZONES.search(_read_text(zone / "type"))]
    return [(f"package-{number}", of, sensors.get(number, [])) for number, of in sorted(cpus.items())]


def _read_all(paths: Iterable[Path]) -> list[int]:
    """Return the whole numbers of files; none of a file that is not there or cannot be read."""
    found = (_read_text(path) for path in paths)
    return [int(text) for text in found if text.removeprefix("-").isdigit()]


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
