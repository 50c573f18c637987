"""Compares sources that see the same joules, and parts with the whole that holds them; pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from energymon.analysis.integrate import Energy
from energymon.reading import ESTIMATE, LAG_S

_APART: Final = 0.1
"""Sources that differ by more than this share, and their bounds, contradict each other."""
_INSIDE: Final = frozenset({"cpu", "dram", "gpu"})
_DEVICE: Final = attrgetter("node", "device", "domain")
_Figure = tuple[str, Sequence[Energy]]
"""Energies that are compared as one sum, and its name."""


def disagreements(energies: Iterable[Energy], best: Iterable[Energy], known: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each two sources of a node's window that contradict each other.

    `known` are the domains that have a figure. What the bounds of counters, and the lag and the scatter of sampled
    power explain, is no contradiction. A board is compared with its average power where it has one: instant power may
    be sampled in step with the load.
    """
    for _, group in groupby(sorted((e for e in energies if e.source != ESTIMATE), key=_DEVICE), key=_DEVICE):
        several = sorted(group, key=lambda e: (e.error_j is None, LAG_S.get(e.source, 0.0)))
        counters = [e for e in several if e.error_j is not None]
        for other in [*counters[1:], *several[len(counters) :][-1:]] if counters else ():
            one, two = ((f"{e.source} of {e.device} {e.domain}", [e]) for e in (counters[0], other))
            yield from _compare(one, two, both=True)
    measured = [e for e in best if e.source != ESTIMATE]
    modules = {e.device for e in measured if e.domain == "module"}
    inside = [e for e in measured if e.domain in _INSIDE and modules and (e.domain != "gpu" or e.device in modules)]
    outside = [e for e in measured if e.domain != "wall" and e not in inside]
    if "module" in known and inside:
        # A module has no other parts than these where all of them are measured.
        module = [e for e in measured if e.domain == "module"]
        yield from _compare(("the module", module), _parts(inside), both=_INSIDE.issubset(known))
    if "wall" in known and outside:
        yield from _compare(("the wall", [e for e in measured if e.domain == "wall"]), _parts(outside), both=False)


def _parts(energies: Sequence[Energy]) -> _Figure:
    return " + ".join(f"{e.device} {e.domain}" for e in energies), energies


def _compare(one: _Figure, two: _Figure, *, both: bool) -> Iterator[str]:
    """Yield that two figures contradict each other; without `both`, that the second one is too large for the first."""
    slacks = [e.scatter_j if e.error_j is None else e.error_j for _, energies in (one, two) for e in energies]
    slack_j = sum(slack or 0.0 for slack in slacks)
    (least_j, less), (most_j, more) = sorted((sum(e.joules for e in energies), name) for name, energies in (one, two))
    is_larger = both or more == two[0]
    if None not in slacks and is_larger and most_j - least_j > slack_j + _APART * most_j:
        times = f"{most_j / least_j:.2f} times as much" if least_j > 0 else "which has none"
        yield f"{more} has {most_j:.1f} J and {less} {least_j:.1f} J, {times}; their bounds explain {slack_j:.1f} J"
