"""CPU package and DRAM energy from the kernel's powercap tree (RAPL on Intel and AMD)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from energymon.clock import Clock
from energymon.counter import Counter
from energymon.errors import CounterError
from energymon.reading import LAG_S, Domain
from energymon.sensors.base import Channel, Discovery, Missing, Point

__all__ = ["PowercapSensor", "open_powercap"]

_NAME: Final = "powercap"
_SOURCE: Final = "rapl-powercap"
_JOULES_PER_UJ: Final = 1e-6
_MAX_ZONE_W: Final = 1000.0
"""Above what any socket or its DRAM draws; used where the zone does not tell its own limit."""
_LIMIT_HEADROOM: Final = 3.0
"""Short bursts and mezzanine limits exceed the long-term limit, by less than this factor."""

# Zones of the MMIO interface repeat package-0, and psys holds package and DRAM: neither may be added to them.
_ZONE: Final = re.compile(r"intel-rapl:\d+(:\d+)?")
_PACKAGE: Final = re.compile(r"package-\d+(-die-\d+)?")

_SETTLE_S: Final = 0.1
"""A live counter moves every millisecond or so."""
_POLL_S: Final = 0.002

_STILL: Final = "some processors have a DRAM zone that never counts; nothing can be done about it"
_READABLE: Final = (
    "energy_uj is root's alone since Linux 5.10: run the agent as root, or let root run `chmod a+r` on it"
)
_MASKED: Final = (
    "container runtimes mask it: run the agent on the host, or in a privileged container with the host's /sys"
)
_ABSENT: Final = (
    "virtual machines rarely have it; on bare metal load the module intel_rapl_msr (Intel, and AMD since Zen)"
)


class _Zone:
    """One energy_uj file, held open."""

    __slots__ = ("_counter", "_fd", "channel", "path")

    def __init__(self, path: Path, channel: Channel, *, wrap: int, max_w: float) -> None:
        self.path = path / "energy_uj"
        self.channel = channel
        self._counter = Counter(unit_j=_JOULES_PER_UJ, wrap=wrap, max_w=max_w, lag_s=LAG_S[_SOURCE])
        self._fd: int | None = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _parse(os.pread(self._fd, 32, 0))
        except BaseException:
            self.close()
            raise

    def read(self, clock: Clock) -> Point:
        """Read once; after a failure the file is opened anew the next time, for it may have come back."""
        before_ns = time.monotonic_ns()
        now_ns, joules, flags, problem = before_ns, None, "", ""
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._fd, 32, 0)
            now_ns = (before_ns + time.monotonic_ns()) // 2
            joules, flags = self._counter.update(_parse(text), now_ns)
        except OSError as error:
            problem = f"{self.path}: {error.strerror}"
            self.close()
        except (ValueError, CounterError) as error:
            problem = f"{self.path} {error}"
            self.close()
        return Point(self.channel, now_ns + clock.offset_ns, joules, flags, problem)

    def shown(self) -> bytes:
        """Return what the file holds, b"" if it cannot be read."""
        try:
            return os.pread(self._fd, 32, 0) if self._fd is not None else b""
        except OSError:
            return b""

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _parse(text: bytes) -> int:
    digits = text.strip()
    if not digits.isdigit():
        raise ValueError(f"holds {text[:32]!r}, expected microjoules as a decimal integer")
    return int(digits)


class PowercapSensor:
    """Package and DRAM of every socket; core and uncore are inside package and are left out."""

    name = _NAME

    def __init__(self, zones: list[_Zone]) -> None:
        self._zones = zones
        self.channels = tuple(zone.channel for zone in zones)

    def read(self, clock: Clock) -> list[Point]:
        """Read every zone, a few microseconds each."""
        return [zone.read(clock) for zone in self._zones]

    def describe(self) -> dict[str, object]:
        """Return each channel's file."""
        return {
            "sensor": self.name,
            "source": _SOURCE,
            "channels": [
                {"device": z.channel.device, "domain": z.channel.domain, "path": str(z.path)} for z in self._zones
            ],
        }

    def close(self) -> None:
        """Close the descriptors."""
        for zone in self._zones:
            zone.close()


def open_powercap(sysfs: Path, settle_s: float = _SETTLE_S) -> Discovery:
    """Open the zones below `sysfs`/class/powercap.

    Those that cannot be read, or do not move within `settle_s`, are named in `missing`.
    """
    root = sysfs / "class" / "powercap"
    zones: dict[Channel, _Zone] = {}
    missing: list[Missing] = []
    entries = sorted(path for path in _listing(root) if _ZONE.fullmatch(path.name))
    for path in entries:
        channel = _channel(path)
        if channel is None or channel in zones:
            continue
        try:
            zones[channel] = _Zone(path, channel, wrap=_parse_file(path / "max_energy_range_uj"), max_w=_max_w(path))
        except PermissionError:
            missing.append(Missing(_NAME, f"{path}/energy_uj: permission denied", _READABLE))
        except OSError as error:
            missing.append(Missing(_NAME, f"{path}/energy_uj: {error.strerror}", _MASKED))
        except ValueError as error:
            missing.append(Missing(_NAME, f"{path} {error}", "report it with the kernel's version"))
    for channel in _still(zones, settle_s):
        missing.append(Missing(_NAME, f"{zones[channel].path} does not move", _STILL))
        zones.pop(channel).close()
    if zones:
        return Discovery(PowercapSensor(list(zones.values())), tuple(missing))
    if not missing:
        if entries:
            missing.append(Missing(_NAME, f"no zone below {root} can be told to be a package or DRAM", _MASKED))
        else:
            missing.append(Missing(_NAME, f"{root} has no RAPL zones", _ABSENT))
    return Discovery(None, tuple(missing))


def _still(zones: Mapping[Channel, _Zone], settle_s: float) -> set[Channel]:
    """Return the channels whose counters show the same for `settle_s`; live ones are told in a few ms."""
    if settle_s <= 0:
        return set()
    first = {channel: zone.shown() for channel, zone in zones.items()}
    still = set(zones)
    deadline = time.monotonic() + settle_s
    while still and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        still = {channel for channel in still if zones[channel].shown() == first[channel]}
    return still


def _listing(root: Path) -> list[Path]:
    try:
        return list(root.iterdir())
    except OSError:
        return []


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _channel(zone: Path) -> Channel | None:
    """Return the zone's channel, or None for a zone that must not be added to the others."""
    name = _name(zone)
    domain: Domain
    if _PACKAGE.fullmatch(name):
        device, domain = name, "cpu"
    elif name == "dram":
        parent = zone.name.rpartition(":")[0]
        device, domain = _name(zone.parent / parent) or parent, "dram"
    else:
        return None
    return Channel(device, domain, _SOURCE)


def _parse_file(path: Path) -> int:
    return _parse(path.read_bytes())


def _max_w(zone: Path) -> float:
    """Return more watts than the zone can draw, from its own long-term limit where it tells one."""
    try:
        limit_w = _parse_file(zone / "constraint_0_max_power_uw") / 1e6
    except (OSError, ValueError):
        limit_w = 0.0
    return min(_LIMIT_HEADROOM * limit_w, 2 * _MAX_ZONE_W) if limit_w > 0 else _MAX_ZONE_W
