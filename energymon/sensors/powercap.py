"""CPU package and DRAM energy from the kernel's powercap tree (RAPL on Intel and AMD)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from energymon.reading import LAG_S
from energymon.sensors.base import Discovery, Missing, Part, line_of
from energymon.sensors.counter import Counter
from energymon.sensors.rapl_sensor import MAX_DOMAIN_W, SETTLE_S, RaplCounters, open_counting

_NAME: Final = "powercap"
_SOURCE: Final = "rapl-powercap"
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


class _Zone(RaplCounters):
    """One energy_uj file."""

    seeks = True

    def __init__(self, zone: Path, domain: Part) -> None:
        """Open it; raises OSError and ValueError, which name the file that has no number."""
        self._path = zone / "energy_uj"
        wrap = _number(zone / _RANGE)
        if wrap <= 0:
            raise ValueError(f"{zone / _RANGE} holds {wrap}, expected more than 0")
        _number(self._path)
        self._counter = Counter(unit_j=1e-6, wrap=wrap, max_w=_max_w(zone), lag_s=LAG_S[_SOURCE])
        super().__init__(_SOURCE, str(self._path), _BYTES, {domain: self._counter})

    def open(self) -> None:
        """Open the file."""
        self.close()
        self.fds = (os.open(self._path, os.O_RDONLY | os.O_CLOEXEC),)

    def parse(self, data: bytes) -> list[int]:
        """Return the microjoules that the file holds."""
        return [_parse(data)]

    def describe(self, i: int) -> dict[str, Any]:
        """Return the file, and how long it may go unread."""
        return {"wrap_s": self._counter.wrap_s, "path": str(self._path)}


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


def domains(sysfs: Path) -> dict[Part, Path]:
    """Return the packages and DRAMs that the tree below `sysfs` names, readable or not, and their zones.

    A device of which an earlier zone has the name has its zone's name too.
    """
    found: dict[Part, Path] = {}
    for zone in _zones(sysfs):
        domain = _domain(zone)
        if domain in found:
            domain = f"{domain[0]} ({zone.name})", domain[1]
        if domain is not None:
            found[domain] = zone
    return found


def open_powercap(
    sysfs: Path, only: Collection[Part] | None = None, settle_s: float = SETTLE_S, confirmed_by: str | None = None
) -> Discovery:
    """Open the zones below `sysfs`/class/powercap, all or those of the domains in `only`.

    Those that cannot be read, do not move within `settle_s`, or repeat another one are named in `missing`.
    `confirmed_by` names the interface that lists the same domains.
    """
    listed = domains(sysfs)

    def open_zones(wanted: Collection[Part]) -> tuple[list[_Zone], list[Missing]]:
        zones: list[_Zone] = []
        missing: list[Missing] = []
        for domain, path in listed.items():
            if domain not in wanted:
                continue
            try:
                if domain != _domain(path):
                    raise ValueError(f"{path}/name is that of another zone too")
                zones.append(_Zone(path, domain))
            except OSError as error:
                remedy = _READABLE if isinstance(error, PermissionError) else _MASKED
                if Path(error.filename).name == _RANGE:
                    remedy = _PARTLY
                missing.append(Missing(_NAME, f"{error.filename}: {error.strerror}", remedy, (domain,)))
            except ValueError as error:
                missing.append(Missing(_NAME, f"{error}", _REPORT, (domain,)))
        return zones, missing

    found = open_counting(_NAME, open_zones, listed if only is None else only, settle_s, confirmed_by)
    if found.sensors or found.missing:
        return found
    root = sysfs / "class" / "powercap"
    if _zones(sysfs):
        return Discovery((), (Missing(_NAME, f"no zone below {root} is known to be a package or DRAM", _MASKED),))
    return Discovery((), (Missing(_NAME, f"{root} has no RAPL zones", _ABSENT),))


def _zones(sysfs: Path) -> list[Path]:
    try:
        return sorted(path for path in (sysfs / "class" / "powercap").iterdir() if _ZONE.fullmatch(path.name))
    except OSError:
        return []


def _domain(zone: Path) -> Part | None:
    """Return what the zone counts, or None for a zone that must not be added to the others."""
    name = line_of(zone / "name")
    if _PACKAGE.fullmatch(name):
        return name, "cpu"
    if name == "dram":
        parent = zone.name.rpartition(":")[0]
        return line_of(zone.parent / parent / "name") or parent, "dram"
    return None


def _max_w(zone: Path) -> float:
    """Return more watts than the zone can draw: four times the largest of its own limits, where it has any."""
    limits_w = [0.0]
    for path in (*zone.glob("constraint_*_max_power_uw"), *zone.glob("constraint_*_power_limit_uw")):
        with suppress(OSError, ValueError):  # some zones list a limit that cannot be read
            limits_w.append(_parse(path.read_bytes()) / 1e6)
    max_w = 4 * max(limits_w)
    return min(max(max_w, _LEAST_LIMIT_W), 2 * MAX_DOMAIN_W) if max_w > 0 else MAX_DOMAIN_W
