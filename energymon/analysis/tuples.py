"""The energy tuples of the EMLIO paper (section 3, Algorithm 1), as differences of the cumulative series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from energymon.analysis.attribution import channels_of, directness
from energymon.analysis.curve import Curve, Place, curves
from energymon.analysis.integrate import require_order
from energymon.analysis.sessions import chunks, session_spans
from energymon.clock.monotonic import tick_at
from energymon.reading import ESTIMATE, INTERPOLATED, Domain, Reading
from energymon.stores.base import Store

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


@dataclass(slots=True)
class _Series:
    curve: Curve
    source: str
    place: Place | None = None


@dataclass(slots=True)
class _Part:
    joules: float | None
    source: str
    interpolated: bool
    devices: Mapping[str, float]


@dataclass(slots=True)
class _Host:
    """A node's series by domain and device, the most direct first."""

    node: str
    domains: dict[Domain, dict[str, list[_Series]]] = field(default_factory=dict)

    def tuple_at(self, tick_ns: int, interval_ns: int) -> EnergyTuple | None:
        parts = {domain: self._part(devices, tick_ns, interval_ns) for domain, devices in self.domains.items()}
        if all(part.joules is None for part in parts.values()):
            return None
        none = _Part(None, "", interpolated=False, devices={})
        cpu, memory, gpu = (parts.get(domain, none) for domain in ("cpu", "dram", "gpu"))
        estimated = cpu.source == ESTIMATE
        return EnergyTuple(
            tick_ns,
            self.node,
            None if estimated else cpu.joules,
            memory.joules,
            gpu.joules,
            cpu.source,
            memory.source,
            gpu.source,
            INTERPOLATED if cpu.interpolated or memory.interpolated or gpu.interpolated else "",
            {domain: parts[domain].devices for domain, devices in self.domains.items() if len(devices) > 1},
            cpu.joules if estimated else None,
        )

    def begin(self, at_ns: int) -> None:
        """Let the next tuple count from `at_ns` on."""
        for devices in self.domains.values():
            for several in devices.values():
                for series in several:
                    series.place = series.curve.place(at_ns)

    @staticmethod
    def _part(devices: Mapping[str, Sequence[_Series]], tick_ns: int, interval_ns: int) -> _Part:
        """Return one domain's joules since the last call; unknown when a device of it has none."""
        joules: dict[str, float] = {}
        sources, interpolated = set(), False
        for device, several in devices.items():
            for series in several:
                before, series.place = series.place, series.curve.place(tick_ns)
                now = series.place
                if device in joules or before is None or now is None or before.segment != now.segment:
                    continue
                joules[device] = now.joules - before.joules
                sources.add(series.source)
                for place in (before, now):
                    if place.before != place.after and series.curve.inferred(place.after, interval_ns):
                        interpolated = True
        if len(joules) < len(devices):
            return _Part(None, "", interpolated=False, devices=joules)
        named = sources.pop() if len(sources) == 1 else ";".join(sorted(sources, key=directness))
        return _Part(sum(joules.values()), named, interpolated, joules)


def tuples(
    readings: Iterable[Reading],
    start_ns: int,
    end_ns: int,
    interval_ns: int,
    devices: Devices | None = None,
) -> Iterator[EnergyTuple]:
    """Yield the tuple of every node at every tick t_k of which [t_{k-1}, t_k] lies in [start, end], UTC ns.

    Each domain is summed over its devices by the most direct source of each. A domain of which a device has no
    figure is unknown, and a tick at which all of them are has no tuple. `devices` are those that are expected;
    without it, those among the readings, which may come in any order. Over consecutive ticks of one source the sum
    is what `joules` returns for the whole. Raises WindowError when the end is before the start.
    """
    require_order(start_ns, end_ns)
    hosts = _hosts(readings, devices)
    first = tick_at(start_ns + interval_ns - 1, interval_ns)
    for host in hosts:
        host.begin(first)
    for tick_ns in range(first + interval_ns, end_ns + 1, interval_ns):
        for host in hosts:
            found = host.tuple_at(tick_ns, interval_ns)
            if found is not None:
                yield found


def stored_tuples(store: Store, start_ns: int, end_ns: int, node: str | None = None) -> Iterator[EnergyTuple]:
    """Yield the tuples of a store's node, or of one node after the other, with bounded memory.

    Each session's ticks are those of its own interval and its devices those that its agent named. Raises StoreError
    and WindowError.
    """
    for session, begins, ends in session_spans(store, start_ns, end_ns, node):
        devices = channels_of(session.description, session.node).devices
        expected = {session.node: devices} if devices else None
        for begin, stop in chunks(tick_at(begins, session.interval_ns), ends, session.interval_ns):
            yield from tuples(store.readings(begin, stop, session.node), begin, stop, session.interval_ns, expected)


def _hosts(readings: Iterable[Reading], devices: Devices | None) -> list[_Host]:
    hosts: dict[str, _Host] = {}
    expected = {node: set(named) for node, named in (devices or {}).items()}
    for node, named in expected.items():
        host = hosts.setdefault(node, _Host(node))
        for device, domain in sorted(named):
            host.domains.setdefault(domain, {})[device] = []
    for key, curve in sorted(curves(readings).items(), key=lambda item: directness(item[0][3])):
        node, device, _, source = key
        domain = curve.rows[0].domain
        if node in expected and (device, domain) not in expected[node]:
            continue
        host = hosts.setdefault(node, _Host(node))
        of_domain = host.domains.setdefault(domain, {})
        # Estimates come last: what of a domain is measured is not added to an estimate of all of it.
        measured = any(several and several[0].source != ESTIMATE for several in of_domain.values())
        if source != ESTIMATE or not measured:
            of_domain.setdefault(device, []).append(_Series(curve, source))
    return [hosts[node] for node in sorted(hosts)]
