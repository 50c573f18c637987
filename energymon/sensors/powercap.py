"""CPU package and DRAM energy from the kernel's powercap tree (RAPL on Intel and AMD)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from energymon.clock.monotonic import NS
from energymon.errors import CounterError
from energymon.reading import LAG_S, Domain
from energymon.sensors.base import Channel, Column, Discovery, Missing, Point, RawCounter, counted_column
from energymon.sensors.counter import Counter
from energymon.sensors.domains import (
    MAX_DOMAIN_W,
    REPEATED,
    SETTLE_S,
    RaplDomain,
    lags,
    repeated,
    still,
    still_remedy,
    unread,
)
from energymon.sensors.open_files import CLOSED, OpenFiles
from energymon.sensors.updates import Age
from energymon.ticker.ticker import Answers, Operation

__all__ = ["PowercapSensor", "domains", "open_powercap"]

_NAME: Final = "powercap"
_SOURCE: Final = "rapl-powercap"
_JOULES_PER_UJ: Final = 1e-6
_LIMIT_HEADROOM: Final = 4.0
_LEAST_LIMIT_W: Final = 400.0
"""No zone is refused less than this: parts of 15 W draw 64 W for seconds and those of 65 W 220 W, and some list their
long-term limit alone."""
_BYTES: Final = 32

# Zones of the MMIO interface repeat package-0, and psys holds package and DRAM: neither may be added to them.
_ZONE: Final = re.compile(r"intel-rapl:\d+(:\d+)?")
_PACKAGE: Final = re.compile(r"package-\d+(-die-\d+)?")

_READABLE: Final = (
    "energy_uj is root's alone since Linux 5.10: run the agent as root, or let root run `chmod a+r` on it"
)
_MASKED: Final = (
    "container runtimes mask it: run the agent on the host, or in a privileged container with the host's /sys"
)
_ABSENT: Final = (
    "virtual machines rarely have it; on bare metal load the module intel_rapl_msr (Intel, and AMD since Zen)"
)
_RANGE: Final = "max_energy_range_uj"
_PARTLY: Final = (
    "the counter wraps at what this file holds, and cannot be summed without it; the kernel shows it beside energy_uj:"
    " give the agent all of the host's /sys"
)
_REPORT: Final = "report it with the kernel's version"


class _Zone:
    """One energy_uj file."""

    __slots__ = ("age", "channel", "counter", "fd", "path")

    def __init__(self, path: Path, domain: RaplDomain) -> None:
        self.path = path / "energy_uj"
        self.channel = Channel(*domain, _SOURCE)
        self.counter = Counter(
            unit_j=_JOULES_PER_UJ,
            wrap=_range(path),
            max_w=_max_w(path),
            lag_s=LAG_S[_SOURCE],
        )
        self.age = Age(LAG_S[_SOURCE])
        self.fd = CLOSED
        try:
            self.open()
            _number(self.path)
        except BaseException:
            self.close()
            raise

    def learn(self, lag_s: float) -> None:
        """Take how old the value may be that the file shows."""
        self.age = Age(lag_s)
        self.counter.allow_lag(lag_s)

    def open(self) -> None:
        self.close()
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self.fd != CLOSED:
            os.close(self.fd)
            self.fd = CLOSED

    def shown(self) -> bytes:
        """Return what the file holds, b"" if it cannot be read."""
        try:
            return os.pread(self.fd, _BYTES, 0)
        except OSError:
            return b""

    def shown_or_none(self) -> bytes | None:
        """Return what the file holds, None if it cannot be read."""
        return self.shown() or None

    def begun(self, raw: int) -> RawCounter:
        """Return the counter with the value that a series begins with."""
        return RawCounter(raw, _JOULES_PER_UJ, self.counter.wrap, self.counter.max_w, str(self.path))

    def value(self) -> int:
        """Return the counter's value, -1 if it cannot be read."""
        try:
            return _parse(self.shown())
        except ValueError:
            return -1


def _parse(text: bytes) -> int:
    digits = text.strip()
    if not digits.isdigit():
        raise ValueError(f"holds {text[:_BYTES]!r}, expected microjoules as a decimal integer")
    return int(digits)


def _number(file: Path) -> int:
    """Return the number that a file holds; raises OSError and ValueError, which name it."""
    try:
        return _parse(file.read_bytes())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    except ValueError as error:
        raise ValueError(f"{file} {error}") from error


def _range(zone: Path) -> int:
    counts = _number(zone / _RANGE)
    if counts <= 0:
        raise ValueError(f"{zone / _RANGE} holds {counts}, expected more than 0")
    return counts


def _remedy(error: OSError) -> str:
    if Path(str(error.filename)).name == _RANGE:
        return _PARTLY
    return _READABLE if isinstance(error, PermissionError) else _MASKED


class PowercapSensor:
    """Package and DRAM of every socket; core and uncore are inside package and are left out."""

    name = _NAME

    def __init__(self, zones: list[_Zone], confirmed_by: str | None) -> None:
        self._zones = zones
        self._held = OpenFiles(zones, os.pread, _BYTES, 0)
        self.channels = tuple(zone.channel for zone in zones)
        self.sample = self._held.read
        self._confirmed_by = confirmed_by

    def operations(self) -> list[Operation] | None:
        """Return a read a zone."""
        return [Operation(_BYTES, fd=zone.fd, seeks=True) for zone in self._zones] if self._held.whole else None

    def decode(self, raw: Any, offset_ns: int) -> list[Point]:
        """Return a point of each zone; a file that held what cannot be true is opened anew, it may be another."""
        points: list[Point] = []
        before_ns: int = raw[0]
        at = 1
        for zone in self._zones:
            text, after_ns = raw[at], raw[at + 1]
            at += 2
            begun_ns, before_ns = before_ns, after_ns
            now_ns = (begun_ns + after_ns) // 2
            try:
                if type(text) is not bytes:
                    raise text
                joules, flags = zone.counter.update(_parse(text), after_ns, begun_ns)
            except OSError as error:
                points.append(self._failed(zone, now_ns + offset_ns, f": {error.strerror}"))
            except (ValueError, CounterError) as error:
                self._held.distrust(at // 2 - 1)
                points.append(self._failed(zone, now_ns + offset_ns, f" {error}"))
            else:
                if flags:
                    zone.age.restart()
                early_ns = now_ns - zone.age.since_ns(joules, begun_ns, after_ns)
                shown = zone.begun(_parse(text)) if flags else None
                late_ns = after_ns - now_ns
                points.append(Point(zone.channel, now_ns + offset_ns, joules, flags, "", early_ns, late_ns, shown))
        return points

    def decode_many(self, answers: Sequence[Answers], offset_ns: int) -> list[Column] | None:
        """Decode several ticks whose files all held more microjoules."""
        marks = [zone.counter.mark() for zone in self._zones]
        counted: list[list[float]] = []
        for zone, answer in zip(self._zones, answers, strict=True):
            try:
                texts = (text[:size] for text, size in zip(answer.values[0], answer.status, strict=True))
                whole = min(answer.status) > 0
                joules = zone.counter.advance(map(_parse, texts), answer.after_ns, answer.before_ns) if whole else None
            except ValueError:
                joules = None
            if joules is None:
                for other, mark in zip(self._zones, marks, strict=True):
                    other.counter.back_to(mark)
                return None
            counted.append(joules)
        return [
            counted_column(zone.channel, answer, joules, zone.age, offset_ns)
            for zone, answer, joules in zip(self._zones, answers, counted, strict=True)
        ]

    @staticmethod
    def _failed(zone: _Zone, t_ns: int, why: str) -> Point:
        return Point(zone.channel, t_ns, None, problem=f"{zone.path}{why}")

    def describe(self) -> dict[str, object]:
        """Return each channel's file."""
        return {
            "sensor": self.name,
            "source": _SOURCE,
            "confirmed_by": self._confirmed_by,
            "channels": [
                {
                    "device": zone.channel.device,
                    "domain": zone.channel.domain,
                    "source": _SOURCE,
                    "lag_s": zone.age.lag_ns / NS,
                    "wrap_s": zone.counter.wrap_s,
                    "path": str(zone.path),
                }
                for zone in self._zones
            ],
        }

    def notes(self) -> list[str]:
        """Return nothing: its points tell all."""
        return []

    def close(self) -> None:
        """Close the descriptors."""
        self._held.close()


def domains(sysfs: Path) -> dict[RaplDomain, Path]:
    """Return the packages and DRAMs that the tree below `sysfs` names, readable or not, and their zones."""
    found: dict[RaplDomain, Path] = {}
    for zone in _entries(sysfs):
        domain = _domain(zone)
        if domain is not None:
            found.setdefault(domain, zone)
    return found


def open_powercap(
    sysfs: Path,
    only: Collection[RaplDomain] | None = None,
    settle_s: float = SETTLE_S,
    confirmed_by: str | None = None,
) -> Discovery:
    """Open the zones below `sysfs`/class/powercap, all or those of the domains in `only`.

    Those that cannot be read, do not move within `settle_s`, or repeat another one are named in `missing`.
    `confirmed_by` names the interface that lists the same domains.
    """
    root = sysfs / "class" / "powercap"
    zones: dict[RaplDomain, _Zone] = {}
    missing: list[Missing] = []
    for domain, path in domains(sysfs).items():
        if only is not None and domain not in only:
            continue
        try:
            zones[domain] = _Zone(path, domain)
        except OSError as error:
            missing.append(Missing(_NAME, f"{error.filename}: {error.strerror}", _remedy(error), (domain,)))
        except ValueError as error:
            missing.append(Missing(_NAME, f"{error}", _REPORT, (domain,)))
    resting = still(lambda: {key: zone.shown() for key, zone in zones.items()}, settle_s)
    for domain in sorted(resting):
        parts = unread(domain, zones.keys() - resting)
        missing.append(Missing(_NAME, f"{zones[domain].path} does not move", still_remedy(domain), parts))
        zones.pop(domain).close()
    for domain, first in repeated({key: zone.value for key, zone in zones.items()}, settle_s).items():
        missing.append(Missing(_NAME, f"{zones[domain].path} repeats {first[0]}", REPEATED))
        zones.pop(domain).close()
    for domain, lag_s in lags({key: zone.shown_or_none for key, zone in zones.items()}, settle_s).items():
        zones[domain].learn(lag_s)
    if zones:
        return Discovery((PowercapSensor(list(zones.values()), confirmed_by),), tuple(missing))
    if not missing:
        if _entries(sysfs):
            missing.append(Missing(_NAME, f"no zone below {root} can be told to be a package or DRAM", _MASKED))
        else:
            missing.append(Missing(_NAME, f"{root} has no RAPL zones", _ABSENT))
    return Discovery((), tuple(missing))


def _entries(sysfs: Path) -> list[Path]:
    try:
        return sorted(path for path in (sysfs / "class" / "powercap").iterdir() if _ZONE.fullmatch(path.name))
    except OSError:
        return []


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


def _domain(zone: Path) -> RaplDomain | None:
    """Return what the zone counts, or None for a zone that must not be added to the others."""
    name = _name(zone)
    domain: Domain
    if _PACKAGE.fullmatch(name):
        device, domain = name, "cpu"
    elif name == "dram":
        parent = zone.name.rpartition(":")[0]
        device, domain = _name(zone.parent / parent) or parent, "dram"
    else:
        return None
    return device, domain


def _max_w(zone: Path) -> float:
    """Return more watts than the zone can draw, from the largest of its own limits where it tells any."""
    limits_w = [0.0]
    for path in (*zone.glob("constraint_*_max_power_uw"), *zone.glob("constraint_*_power_limit_uw")):
        try:
            limits_w.append(_parse(path.read_bytes()) / 1e6)
        except (OSError, ValueError):
            # Some zones list a limit that they do not tell.
            continue
    most_w = _LIMIT_HEADROOM * max(limits_w)
    return min(max(most_w, _LEAST_LIMIT_W), 2 * MAX_DOMAIN_W) if most_w > 0 else MAX_DOMAIN_W
