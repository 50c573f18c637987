"""RAPL by whichever of the kernel's two interfaces can be read, in the domains that both agree on.

Perf events come first: 64 bits without wraps, and all of a socket in one system call. Powercap is read where perf
cannot be, and its list of domains confirms perf's, readable or not. A domain that only one of two lists has is left
out and named, and a list that stands alone is taken as it is. Either list holds the package and the DRAM of every
socket and nothing that lies inside them or repeats them: no core, uncore, psys or MMIO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from energymon.reading import Domain
from energymon.sensors import perf, powercap
from energymon.sensors.base import Discovery, Missing, Part
from energymon.sensors.rapl_domains import SETTLE_S, unread

_LACKS: Final[Mapping[Domain, str]] = {"cpu": "has CPUs and is in no list", "dram": "is without DRAM in every list"}
_ALONE: Final = "`--sensors {}` takes that list as it is; check its figures against another meter"


def open_rapl(sysfs: Path, settle_s: float = SETTLE_S) -> Discovery:
    """Open the best interface below `sysfs`; what it lacks, and the better one that cannot be read, is in `missing`."""
    zones = powercap.domains(sysfs)
    in_perf, in_powercap = set(perf.domains(sysfs)), set(zones)
    agreed = in_perf & in_powercap if in_perf and in_powercap else in_perf | in_powercap
    left_out = tuple(
        Missing(
            name,
            f"{domain} of {device} is in {name}'s list alone and is left out",
            _ALONE.format(name),
            unread((device, domain), agreed),
        )
        for name, alone in (("perf", in_perf - agreed), ("powercap", in_powercap - agreed))
        for device, domain in sorted(alone)
    )
    left_out += tuple(_unlisted(sysfs, in_perf | in_powercap))
    if left_out and not agreed:
        return Discovery((), left_out)
    by_perf = perf.open_perf(sysfs, agreed, settle_s, "powercap" if in_powercap else None, zones=zones)
    if by_perf.sensors:
        return Discovery(by_perf.sensors, (*by_perf.missing, *left_out))
    by_powercap = powercap.open_powercap(sysfs, agreed, settle_s, "perf" if in_perf else None)
    if in_powercap:
        # Powercap is read, so powercap says what can be read and what cannot.
        by_perf = replace(by_perf, missing=tuple(replace(gap, parts=()) for gap in by_perf.missing))
    return Discovery(by_powercap.sensors, (*by_perf.missing, *by_powercap.missing, *left_out))


def _unlisted(sysfs: Path, listed: Collection[Part]) -> Iterator[Missing]:
    """Yield the packages and DRAMs that others of their kind are listed without."""
    expected: dict[Domain, set[str]] = {"cpu": _sockets(sysfs), "dram": {_socket(device) for device, _ in listed}}
    for domain, whole in expected.items():
        there = {_socket(device) for device, of in listed if of == domain}
        # Compared by number, for older kernels number packages in their own way.
        if there and len(there) < len(whole):
            for socket in sorted(whole - there)[: len(whole) - len(there)]:
                yield Missing(
                    "rapl",
                    f"{socket} {_LACKS[domain]} of perf's or powercap's, unlike {', '.join(sorted(there))}",
                    "give the agent all of the host's /sys, or report it with the kernel's version",
                    ((socket, domain),),
                )


def _sockets(sysfs: Path) -> set[str]:
    """Return the packages that the kernel places CPUs in, as the lists name them."""
    found: set[str] = set()
    for file in (sysfs / "devices" / "system" / "cpu").glob("cpu[0-9]*/topology/physical_package_id"):
        try:
            number = int(file.read_text())
        except (OSError, ValueError):
            # A CPU that goes offline takes its topology along.
            continue
        if number >= 0:
            found.add(f"package-{number}")
    return found


def _socket(device: str) -> str:
    return device.partition("-die-")[0]
