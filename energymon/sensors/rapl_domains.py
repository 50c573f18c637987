"""RAPL's domains: what they can draw, how old their values may be, and which of those that are listed really count.

A domain is a socket or die as powercap names it, "package-0" or "package-0-die-1", and what of it is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from energymon.reading import Domain
from energymon.sensors.base import Missing, Part
from energymon.sensors.rapl_sensor import RaplCounters
from energymon.sensors.updates import lag_of, polled

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
_REPEATED: Final = "Linux 6.9 to 6.13 list an AMD socket's one counter once a die; the first die stands for the socket"
_SAME_MOVES: Final = 10
"""Two counters of their own do not move in step this many times."""
_SAME_SETTLES: Final = 10
"""Two that move in step are watched for this many times the settling time."""
_SAME_POLL_S: Final = 0.0002
_LAG_POLL_S: Final = 0.0001
_LAG_USUAL_S: Final = 0.05
_LAG_LONGEST_S: Final = 0.5


def unread(domain: Part, counting: Collection[Part]) -> tuple[Part, ...]:
    """Return a domain that is left out if its joules are missing from a sum.

    A package always draws power. DRAM that no socket counts is no domain of the host; DRAM that another one of
    `counting` counts is a part of it.
    """
    return (domain,) if domain[1] == "cpu" or any(of == domain[1] for _, of in counting) else ()


def drop_idle(
    sensor: str, files: Collection[RaplCounters], name_of: Callable[[Part], str], settle_s: float
) -> tuple[set[Part], list[Missing]]:
    """Return the domains that do not move within `settle_s` or repeat another one, and what to say of each.

    `name_of` names a domain in messages.
    """
    values = {domain: partial(file.value, i) for file, i, domain in _each(files)}
    missing: list[Missing] = []
    resting = _resting(values, settle_s)
    for domain in sorted(resting):
        parts = unread(domain, values.keys() - resting)
        missing.append(Missing(sensor, f"{name_of(domain)} does not move", _STILL[domain[1]], parts))
        del values[domain]
    same = repeated(values, settle_s)
    missing += [Missing(sensor, f"{name_of(domain)} repeats {first[0]}", _REPEATED) for domain, first in same.items()]
    return resting | same.keys(), missing


def learn_lags(files: Collection[RaplCounters], settle_s: float) -> None:
    """Poll the counters, to learn how old their values may be; nothing where `settle_s` leaves no time for it."""
    if settle_s <= 0:
        return
    each = list(_each(files))
    reads = [partial(file.value, i) for file, i, _ in each]
    shown = polled(reads, step_s=_LAG_POLL_S, usual_s=_LAG_USUAL_S, longest_s=_LAG_LONGEST_S)
    for (file, i, _), looks in zip(each, shown, strict=True):
        file.counters[i].lag_s = lag_of(looks) or _LAG_LONGEST_S


def repeated(read: Mapping[Part, Callable[[], int | None]], settle_s: float) -> dict[Part, Part]:
    """Return the dies whose counter is that of an earlier die of their socket, and which one that is.

    `read` returns what a domain shows, None where it cannot be read.
    """
    found: dict[Part, Part] = {}
    own: dict[tuple[str, Domain], list[Part]] = {}
    for domain in read:
        dies = own.setdefault((domain[0].partition("-die-")[0], domain[1]), [])
        same = next((other for other in dies if _in_step(read[other], read[domain], settle_s)), None)
        if same is None:
            dies.append(domain)
        else:
            found[domain] = same
    return found


def _resting(read: Mapping[Part, Callable[[], int | None]], settle_s: float) -> set[Part]:
    """Return the domains that show the same for `settle_s`; live ones are found in a few ms."""
    first = {domain: value() for domain, value in read.items()}
    resting = set(first) if settle_s > 0 else set()
    deadline = time.monotonic() + settle_s
    while resting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        resting = {domain for domain in resting if read[domain]() == first[domain]}
    return resting


def _in_step(first: Callable[[], int | None], second: Callable[[], int | None], settle_s: float) -> bool:
    """Return whether two counters keep their distance exactly; False when that cannot be seen in time."""
    apart: int | None = None
    last: int | None = None
    moves = 0
    deadline = time.monotonic() + _SAME_SETTLES * settle_s
    while time.monotonic() < deadline:
        time.sleep(_SAME_POLL_S)
        before, shown, after = first(), second(), first()
        if before is None or shown is None or before != after:
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


def _each(files: Iterable[RaplCounters]) -> Iterator[tuple[RaplCounters, int, Part]]:
    for file in files:
        for i, domain in enumerate(file.domains):
            yield file, i, domain
