"""CPU package and DRAM energy from the kernel's powercap tree (RAPL on Intel and AMD)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from energymon.reading import LAG_S, Domain
from energymon.sensors.base import Discovery, Missing, Part
from energymon.sensors.counter import Counter
from energymon.sensors.rapl_sensor import MAX_DOMAIN_W, SETTLE_S, RaplCounters, RaplSensor, drop_idle, learn_lags

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


class _Zone(RaplCounters):
    """One energy_uj file."""

    reopens_on_doubt = True
    seeks = True

    def __init__(self, path: Path, domain: Part) -> None:
        self.path = path / "energy_uj"
        counter = Counter(unit_j=_JOULES_PER_UJ, wrap=_range(path), max_w=_max_w(path), lag_s=LAG_S[_SOURCE])
        super().__init__(_SOURCE, [domain], [counter], _BYTES, str(self.path))
        try:
            self.open()
            _number(self.path)
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        """Open the file."""
        self.close()
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def parse(self, data: bytes) -> list[int]:
        """Return the microjoules that the file holds."""
        return [_parse(data)]

    def describe(self, i: int) -> dict[str, object]:
        """Return the file, and how long it may go unread."""
        return {"wrap_s": self.counters[i].wrap_s, "path": str(self.path)}


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


def domains(sysfs: Path) -> dict[Part, Path]:
    """Return the packages and DRAMs that the tree below `sysfs` names, readable or not, and their zones.

    A device of which an earlier zone has the name has its zone's name too.
    """
    found: dict[Part, Path] = {}
    for zone in _entries(sysfs):
        domain = _domain(zone)
        if domain in found:
            domain = f"{domain[0]} ({zone.name})", domain[1]
        if domain is not None:
            found[domain] = zone
    return found


def open_powercap(
    sysfs: Path,
    only: Collection[Part] | None = None,
    settle_s: float = SETTLE_S,
    confirmed_by: str | None = None,
) -> Discovery:
    """Open the zones below `sysfs`/class/powercap, all or those of the domains in `only`.

    Those that cannot be read, do not move within `settle_s`, or repeat another one are named in `missing`.
    `confirmed_by` names the interface that lists the same domains.
    """
    root = sysfs / "class" / "powercap"
    zones: dict[Part, _Zone] = {}
    missing: list[Missing] = []
    for domain, path in domains(sysfs).items():
        if only is not None and domain not in only:
            continue
        if domain != _domain(path):
            missing.append(Missing(_NAME, f"{path}/name is that of another zone too", _REPORT, (domain,)))
            continue
        try:
            zones[domain] = _Zone(path, domain)
        except OSError as error:
            missing.append(Missing(_NAME, f"{error.filename}: {error.strerror}", _remedy(error), (domain,)))
        except ValueError as error:
            missing.append(Missing(_NAME, f"{error}", _REPORT, (domain,)))
    idle, why = drop_idle(_NAME, zones.values(), lambda domain: str(zones[domain].path), settle_s)
    missing += why
    for domain in idle:
        zones.pop(domain).close()
    files = list(zones.values())
    learn_lags(files, settle_s)
    if files:
        return Discovery((RaplSensor(_NAME, files, confirmed_by),), tuple(missing))
    if not missing:
        if _entries(sysfs):
            missing.append(Missing(_NAME, f"no zone below {root} is known to be a package or DRAM", _MASKED))
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


def _domain(zone: Path) -> Part | None:
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
    """Return more watts than the zone can draw, from the largest of its own limits where it has any."""
    limits_w = [0.0]
    for path in (*zone.glob("constraint_*_max_power_uw"), *zone.glob("constraint_*_power_limit_uw")):
        try:
            limits_w.append(_parse(path.read_bytes()) / 1e6)
        except (OSError, ValueError):
            # Some zones list a limit that cannot be read.
            continue
    max_w = _LIMIT_HEADROOM * max(limits_w)
    return min(max(max_w, _LEAST_LIMIT_W), 2 * MAX_DOMAIN_W) if max_w > 0 else MAX_DOMAIN_W
