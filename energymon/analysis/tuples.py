"""The energy tuples of the EMLIO paper (section 3, Algorithm 1), as differences of the cumulative series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from energymon.analysis.attribution import channels_of, directness
from energymon.analysis.curve import Curve, curves
from energymon.analysis.integrate import require_order
from energymon.analysis.sessions import chunks, session_spans
from energymon.clock.monotonic import tick_at
from energymon.reading import ESTIMATE, INTERPOLATED, WHOLES, Domain, Reading
from energymon.store import SqliteStore

Devices = Mapping[str, Collection[tuple[str, Domain]]]
"""By node: the devices that make up each domain."""


@dataclass(frozen=True, slots=True)
class EnergyTuple:
    """What one node used between two ticks, (t_k, node_id, cpu_energy, memory_energy, gpu_energy)."""

    t_ns: int
    """The tick t_k, UTC ns of the node."""
    node: str
    cpu_energy: float | None
    """J since t_{k-1} over all sockets; None when unknown."""
    memory_energy: float | None
    """J since t_{k-1} in the DRAM of all sockets; None when unknown."""
    gpu_energy: float | None
    """J since t_{k-1} over all boards; None when unknown."""
    cpu_source: str
    """Which sensors' joules these are, ";" between several; "" when unknown, "estimate" without a measurement."""
    memory_source: str
    gpu_source: str
    flags: str
    """INTERPOLATED when either tick lies where readings were missed, else ""."""
    devices: Mapping[Domain, Mapping[str, float]] = field(default_factory=dict)
    """J since t_{k-1} by device, of each domain that has several; a device without a figure is left out."""
    cpu_energy_estimate: float | None = None
    """J since t_{k-1} where nothing measures the CPU, which `cpu_energy` does not contain; None without an estimate."""


class _DomainDelta(NamedTuple):
    """One domain of a node between two ticks."""

    joules: float | None
    """None when a device of the domain has no figure."""
    source: str
    interpolated: bool
    devices: Mapping[str, float]


_NOTHING: Final = _DomainDelta(None, "", False, {})
_Delta = tuple[float, bool]
"""Joules of a series since the tick before, and whether readings were missed around either tick."""
_Devices = dict[str, list[tuple[str, list[_Delta | None]]]]
"""By device: source and deltas, a delta a tick, of each of its series, the most direct first."""


def tuples(
    readings: Iterable[Reading], start_ns: int, end_ns: int, interval_ns: int, devices: Devices | None = None
) -> Iterator[EnergyTuple]:
    """Yield the tuple of every node at every tick t_k of which [t_{k-1}, t_k] lies in [start, end], UTC ns.

    Each domain is summed over its devices by the most direct source of each. A domain of which a device has no
    figure is unknown, and a tick at which all of them are has no tuple. `devices` are those that are expected, by
    default those among the readings, which may come in any order. Raises WindowError when the end is before the start.
    """
    require_order(start_ns, end_ns)
    grid = range(tick_at(start_ns + interval_ns - 1, interval_ns), end_ns + 1, interval_ns)
    hosts = _hosts(readings, devices or {}, grid)
    for i, tick_ns in enumerate(grid[1:]):
        for node, domains in hosts.items():
            parts: dict[Domain, _DomainDelta] = {of: _part(domains[of], i) for of in domains if of not in WHOLES}
            if any(part.joules is not None for part in parts.values()):
                yield _tuple(tick_ns, node, parts)


def _tuple(tick_ns: int, node: str, parts: Mapping[Domain, _DomainDelta]) -> EnergyTuple:
    cpu, memory, gpu = parts.get("cpu", _NOTHING), parts.get("dram", _NOTHING), parts.get("gpu", _NOTHING)
    estimated = cpu.source == ESTIMATE
    joules = None if estimated else cpu.joules, memory.joules, gpu.joules
    sources = cpu.source, memory.source, gpu.source
    flags = INTERPOLATED if any(part.interpolated for part in parts.values()) else ""
    devices = {domain: part.devices for domain, part in parts.items() if len(part.devices) > 1}
    return EnergyTuple(tick_ns, node, *joules, *sources, flags, devices, cpu.joules if estimated else None)


def _part(devices: _Devices, i: int) -> _DomainDelta:
    """Return one domain's joules at tick `i`; unknown when a device of it has none."""
    joules: dict[str, float] = {}
    sources: dict[str, None] = {}
    interpolated = False
    for device, several in devices.items():
        for source, deltas in several:
            if (delta := deltas[i]) is not None:
                joules[device] = delta[0]
                interpolated = interpolated or delta[1]
                sources[source] = None
                break
    if len(joules) < len(devices):
        return _DomainDelta(None, "", False, joules)
    return _DomainDelta(sum(joules.values()), ";".join(sorted(sources, key=directness)), interpolated, joules)


def _deltas(curve: Curve, grid: range) -> Iterator[_Delta | None]:
    """Yield the joules of a series at each tick since the one before; None where they are unknown."""
    for before, now in pairwise(map(curve.place, grid)):
        if before is None or now is None or before.segment != now.segment:
            yield None
        else:
            between = [place.after for place in (before, now) if place.before != place.after]
            yield now.joules - before.joules, any(curve.inferred(after, grid.step) for after in between)


def stored_tuples(store: SqliteStore, start_ns: int, end_ns: int, node: str | None = None) -> Iterator[EnergyTuple]:
    """Yield the tuples of a store's node, or of one node after the other, with bounded memory.

    Each session has its own interval, and the devices that its agent named. Raises StoreError and WindowError.
    """
    for session, begins, ends in session_spans(store, start_ns, end_ns, node):
        expected = {session.node: channels_of(session.description, session.node).devices}
        for begin, stop in chunks(tick_at(begins, session.interval_ns), ends, session.interval_ns):
            yield from tuples(store.readings(begin, stop, session.node), begin, stop, session.interval_ns, expected)


def _hosts(readings: Iterable[Reading], devices: Devices, grid: range) -> dict[str, dict[Domain, _Devices]]:
    """Return each node's domains, by node."""
    hosts: dict[str, dict[Domain, _Devices]] = {}
    for node, named in devices.items():
        for device, domain in sorted(set(named)):
            hosts.setdefault(node, {}).setdefault(domain, {})[device] = []
    for key, curve in sorted(curves(readings).items(), key=lambda item: directness(item[0][3])):
        node, device, _, source = key
        domain = curve.rows[0].domain
        if (expected := devices.get(node)) and (device, domain) not in expected:
            continue
        of_domain = hosts.setdefault(node, {}).setdefault(domain, {})
        # Estimates come last: what of a domain is measured is not added to an estimate of all of it.
        measured = any(several and several[0][0] != ESTIMATE for several in of_domain.values())
        if source != ESTIMATE or not measured:
            of_domain.setdefault(device, []).append((source, list(_deltas(curve, grid))))
    return dict(sorted(hosts.items()))
