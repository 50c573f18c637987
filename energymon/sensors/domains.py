"""What RAPL's two interfaces share: the names of its domains, what they can draw, and whether they count."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from energymon.reading import Domain
from energymon.sensors.updates import lag_of, polled

RaplDomain = tuple[str, Domain]
"""A socket or die as powercap names it, "package-0" or "package-0-die-1", and what of it is counted."""

MAX_DOMAIN_W: Final = 1000.0
"""Above what any socket or its DRAM draws."""

SETTLE_S: Final = 0.1
"""A live counter moves every millisecond or so."""
_POLL_S: Final = 0.002

_STILL: Final[Mapping[Domain, str]] = {
    "dram": "some processors have a DRAM domain that never counts; nothing can be done about it",
    "cpu": "a package in use always draws power: a virtual machine may show a counter that nothing drives, and on bare"
    " metal a cold boot or the machine's firmware may help",
}
REPEATED: Final = "Linux 6.9 to 6.13 list an AMD socket's one counter once a die; the first die stands for the socket"
_SAME_MOVES: Final = 10
"""Two counters of their own do not move in step this many times."""
_SAME_SETTLES: Final = 10
"""Two that move in step are watched for this many times the settling time."""
_SAME_POLL_S: Final = 0.0002
_LAG_POLL_S: Final = 0.0001
_LAG_USUAL_S: Final = 0.05
_LAG_LONGEST_S: Final = 0.5


def still(read: Callable[[], Mapping[RaplDomain, object]], settle_s: float) -> set[RaplDomain]:
    """Return the domains that show the same for `settle_s`; live ones are found in a few ms.

    `read` returns what every domain shows.
    """
    if settle_s <= 0:
        return set()
    first = read()
    resting = set(first)
    deadline = time.monotonic() + settle_s
    while resting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = read()
        resting = {domain for domain in resting if now[domain] == first[domain]}
    return resting


def still_remedy(domain: RaplDomain) -> str:
    """Return what to do about a domain that does not move."""
    return _STILL[domain[1]]


def unread(domain: RaplDomain, counting: Collection[RaplDomain]) -> tuple[RaplDomain, ...]:
    """Return a domain that is left out if its joules are missing from a sum.

    A package always draws power. DRAM that no socket counts is no domain of the host; DRAM that another one of
    `counting` counts is a part of it.
    """
    return (domain,) if domain[1] == "cpu" or any(of == domain[1] for _, of in counting) else ()


def repeated(read: Mapping[RaplDomain, Callable[[], int]], settle_s: float) -> dict[RaplDomain, RaplDomain]:
    """Return the dies whose counter is that of an earlier die of their socket, and which one that is.

    `read` returns what a domain shows.
    """
    found: dict[RaplDomain, RaplDomain] = {}
    own: dict[tuple[str, Domain], list[RaplDomain]] = {}
    for domain in read:
        dies = own.setdefault((domain[0].partition("-die-")[0], domain[1]), [])
        same = next((other for other in dies if _in_step(read[other], read[domain], settle_s)), None)
        if same is None:
            dies.append(domain)
        else:
            found[domain] = same
    return found


def lags(read: Mapping[RaplDomain, Callable[[], object | None]], settle_s: float) -> dict[RaplDomain, float]:
    """Return how old, s, the value of each counter may be; nothing where `settle_s` leaves no time to see it.

    `read` returns what a domain shows, None where it cannot be read.
    """
    if settle_s <= 0:
        return {}
    shown = polled(list(read.values()), step_s=_LAG_POLL_S, usual_s=_LAG_USUAL_S, longest_s=_LAG_LONGEST_S)
    return {domain: lag_of(looks) or _LAG_LONGEST_S for domain, looks in zip(read, shown, strict=True)}


def _in_step(first: Callable[[], int], second: Callable[[], int], settle_s: float) -> bool:
    """Return whether two counters keep their distance exactly; False when that cannot be seen in time."""
    apart: int | None = None
    last: int | None = None
    moves = 0
    deadline = time.monotonic() + _SAME_SETTLES * settle_s
    while time.monotonic() < deadline:
        time.sleep(_SAME_POLL_S)
        before, shown, after = first(), second(), first()
        if before != after:
            continue
        if apart is not None and shown - before != apart:
            return False
        apart = shown - before
        if before != last:
            last = before
            moves += 1
            if moves > _SAME_MOVES:
                return True
    return False
