"""RAPL by whichever of the kernel's two interfaces can be read, in the domains that both agree on.

Perf events come first: 64 bits without wraps, and all of a socket in one system call. Powercap is read where perf
cannot be, and its list of domains confirms perf's, readable or not. A domain that only one of two lists has is left
out and named, and a list that stands alone is taken as it is. Either list holds the package and the DRAM of every
socket and nothing that lies inside them or repeats them: no core, uncore, psys or MMIO.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from energymon.sensors import perf, powercap
from energymon.sensors.base import Discovery, Missing
from energymon.sensors.domains import SETTLE_S, unread

__all__ = ["open_rapl"]

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
    if left_out and not agreed:
        return Discovery((), left_out)
    by_perf = perf.open_perf(sysfs, agreed, settle_s, "powercap" if in_powercap else None, zones=zones)
    if by_perf.sensors:
        return Discovery(by_perf.sensors, (*by_perf.missing, *left_out))
    by_powercap = powercap.open_powercap(sysfs, agreed, settle_s, "perf" if in_perf else None)
    if in_powercap:
        # What can be read and what cannot is powercap's to say, for it is what is read.
        by_perf = replace(by_perf, missing=tuple(replace(gap, parts=()) for gap in by_perf.missing))
    return Discovery(by_powercap.sensors, (*by_perf.missing, *by_powercap.missing, *left_out))
