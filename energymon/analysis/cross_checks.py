"""Compares sources that see the same joules, and parts with the whole that holds them; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from energymon.analysis.integrate import Energy
from energymon.reading import ESTIMATE, LAG_S

if TYPE_CHECKING:
    from energymon.analysis.attribution import EnergyComponent

_APART: Final = 0.1
"""Sources that differ by more than this share, and their bounds, contradict each other."""
_INSIDE: Final = frozenset({"cpu", "dram", "gpu"})


def disagreements(
    energies: Iterable[Energy], best: Sequence[Energy], components: Sequence[EnergyComponent]
) -> Iterator[str]:
    """Yield a sentence for each two sources of a node's window that contradict each other.

    What the bounds of counters, and the lag and the scatter of sampled power explain, is no contradiction. Boards are
    compared with their average power where they have one: instant power may be sampled in step with the load.
    """
    ordered = sorted((e for e in energies if e.source != ESTIMATE), key=_device)
    for device, group in groupby(ordered, key=_device):
        several = sorted(group, key=lambda e: (_is_sampled(e), LAG_S.get(e.source, 0.0)))
        counters = [e for e in several if not _is_sampled(e)]
        for other in [*counters[1:], *several[len(counters) :][-1:]] if counters else ():
            pair = [(e.source, [e]) for e in (counters[0], other)]
            yield from _compare(" ".join(device[1:]), *pair, both=True)
    measured = [e for e in best if e.source != ESTIMATE]
    modules = [e for e in measured if e.domain == "module"]
    known = {c.name for c in components if c.joules is not None and not c.estimated}
    devices = {e.device for e in modules}
    inside = [e for e in measured if e.domain in _INSIDE and (e.domain != "gpu" or e.device in devices)]
    if "module" in known and inside:
        # A whole has no other parts than these where all of them are measured.
        yield from _compare("", ("module", modules), _parts(inside), both=known >= _INSIDE)
    if "wall" in known:
        held = [e for e in measured if e.domain != "wall" and not (modules and e in inside)]
        wall = [e for e in measured if e.domain == "wall"]
        if held:
            yield from _compare("", ("wall", wall), _parts(held), both=False)


def _compare(
    what: str, one: tuple[str, Sequence[Energy]], two: tuple[str, Sequence[Energy]], *, both: bool
) -> Iterator[str]:
    """Yield that two figures contradict each other; without `both`, that the second one is too large for the first."""
    if any(e.error_j is None and e.scatter_j is None for _, energies in (one, two) for e in energies):
        return
    (joules, error_j), (other_j, other_error_j) = (
        (sum(e.joules for e in energies), sum(e.scatter_j or e.error_j or 0.0 for e in energies))
        for _, energies in (one, two)
    )
    most_j, least_j = max(joules, other_j), min(joules, other_j)
    if most_j - least_j > error_j + other_error_j + _APART * most_j and (both or other_j > joules):
        times = f"{most_j / least_j:.2f} times as much" if least_j > 0 else "where the other shows none"
        more, less = (two, one) if other_j > joules else (one, two)
        yield (
            f"{what + ': ' if what else ''}{more[0]} has {most_j:.1f} J and {less[0]} {least_j:.1f} J, {times}; "
            f"their bounds explain {error_j + other_error_j:.1f} J"
        )


def _parts(energies: Sequence[Energy]) -> tuple[str, Sequence[Energy]]:
    return " + ".join(f"{e.device} {e.domain}" for e in energies), energies


def _device(energy: Energy) -> tuple[str, str, str]:
    return energy.node, energy.device, energy.domain


def _is_sampled(energy: Energy) -> bool:
    return energy.error_j is None
