"""From the energy of every series to that of a host's components: the best source of each device, summed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from energymon.analysis.baseline import NetEnergy
from energymon.analysis.curve import SeriesKey
from energymon.analysis.integrate import Energy
from energymon.reading import DIRECTNESS, ESTIMATE, LAG_S, Domain
from energymon.stores.base import Session

__all__ = [
    "DOMAINS",
    "Channels",
    "Component",
    "add_up",
    "best_sources",
    "channels_of",
    "components",
    "directness",
]

DOMAINS: Final[tuple[Domain, ...]] = get_args(Domain)


@dataclass(frozen=True, slots=True)
class Channels:
    """What an agent said that it samples."""

    devices: frozenset[tuple[str, Domain]]
    """Devices that make up each domain, readable or not; without a domain's estimates where any of it is measured."""
    lags: Mapping[SeriesKey, float]
    """Seconds, where a sensor's own period was probed."""
    module: bool
    """Whether a GPU's counter covers the whole module, the CPU and its memory too, as on a GH200."""
    unreadable: Mapping[tuple[str, Domain], str] = field(default_factory=dict)
    """Devices that were found and could not be read when the agent started, and why; among `devices` too."""


@dataclass(frozen=True, slots=True)
class Component:
    """The joules of one domain, or of all, over the devices of a node or of several."""

    name: Domain | Literal["total"]
    joules: float | None
    """None when unknown: a device of it has no figure."""
    error_j: float | None
    """Bound of the error; None where a source has none, see integrate.UNBOUNDED, and for what contains one."""
    edge_error_j: float | None
    clock_error_j: float | None
    interpolated_share: float
    """That of the series with the most, 0 to 1."""
    sources: tuple[str, ...]
    estimated: bool
    """Whether any of it is an estimate."""
    lost: tuple[str, ...]
    """Devices without a figure for the window; of a total "package-0 cpu", with their domain."""
    idle_j: float | None = None
    """What the same devices would have drawn idle; None without a baseline of each."""
    net_j: float | None = None
    """Joules beyond that; may be negative."""
    net_error_j: float | None = None
    """Bound of the error of `net_j`."""


def channels_of(session: Session | None) -> Channels:
    """Return what the agent of a session samples; nothing when it is not known."""
    said: list[Mapping[str, object]] = []
    sensors = session.description.get("sensors") if session is not None else None
    for sensor in cast(Sequence[Mapping[str, object]], sensors or ()):
        for channel in cast(Sequence[Mapping[str, object]], sensor.get("channels") or ()):
            said.append({"source": sensor.get("source"), "module_power": sensor.get("module_power"), **channel})
    measured = {c["domain"] for c in said if c["source"] != ESTIMATE}
    node = session.node if session is not None else ""
    gaps = cast(Sequence[Mapping[str, str]], (session.description.get("unreadable") if session else None) or ())
    unreadable = {(gap["device"], cast(Domain, gap["domain"])): gap["reason"] for gap in gaps}
    return Channels(
        frozenset(unreadable)
        | frozenset(
            (str(c["device"]), cast(Domain, c["domain"]))
            for c in said
            if c["source"] != ESTIMATE or c["domain"] not in measured
        ),
        {
            (node, str(c["device"]), str(c["domain"]), str(c["source"])): float(cast(float, c["lag_s"]))
            for c in said
            if c.get("lag_s") is not None and c["source"] in LAG_S
        },
        any(c["domain"] == "gpu" and c["module_power"] for c in said),
        unreadable,
    )


def directness(source: str) -> int:
    """Return the place of a source among the others, the most direct first."""
    return DIRECTNESS.index(source) if source in DIRECTNESS else len(DIRECTNESS)


def best_sources(energies: Iterable[Energy]) -> list[Energy]:
    """Return the most direct source of every device; no estimate of a domain of which a node measures any."""
    ordered = sorted(energies, key=lambda e: (e.node, DOMAINS.index(e.domain), e.device, directness(e.source)))
    measured = {(e.node, e.domain) for e in ordered if e.source != ESTIMATE}
    best: dict[tuple[str, str, str], Energy] = {}
    for energy in ordered:
        if energy.source != ESTIMATE or (energy.node, energy.domain) not in measured:
            best.setdefault((energy.node, energy.device, energy.domain), energy)
    return list(best.values())


def components(best: Collection[Energy], channels: Channels, nets: Collection[NetEnergy] = ()) -> list[Component]:
    """Return a node's energy by domain, and in total, from the best source of each device.

    A domain of which a device has no figure is unknown, and so is the total then: what is left of it would pass
    for the whole. Where a GPU's counter covers the module, the total leaves out what it contains. `nets` are those
    of `best`, where they are wanted.
    """
    net_of = {(n.device, n.domain): n for n in nets}
    found = {(e.device, e.domain) for e in best}
    known: list[Component] = []
    for domain in DOMAINS:
        expected = {device for device, of in channels.devices if of == domain}
        lost = sorted(device for device in expected if (device, domain) not in found)
        parts = [e for e in best if e.domain == domain and (e.device in expected or not expected)]
        if parts or lost:
            known.append(_component(domain, parts, lost, [net_of.get((e.device, e.domain)) for e in parts]))
    if not known:
        return []
    outside = [c for c in known if not (channels.module and c.name != "gpu")]
    return [*known, add_up(outside or known)]


def add_up(parts: Sequence[Component]) -> Component:
    """Return the total of components that do not contain one another; unknown when one of them is."""
    return Component(
        "total",
        _sum([c.joules for c in parts]),
        _sum([c.error_j for c in parts]),
        _sum([c.edge_error_j for c in parts]),
        _sum([c.clock_error_j for c in parts]),
        max((c.interpolated_share for c in parts), default=0.0),
        tuple(sorted({source for c in parts for source in c.sources}, key=directness)),
        any(c.estimated for c in parts),
        tuple(device if c.name == "total" else f"{device} {c.name}" for c in parts for device in c.lost),
        _sum([c.idle_j for c in parts]),
        _sum([c.net_j for c in parts]),
        _sum([c.net_error_j for c in parts]),
    )


def _component(
    domain: Domain, parts: Sequence[Energy], lost: Sequence[str], nets: Sequence[NetEnergy | None]
) -> Component:
    def whole(values: Iterable[float | None]) -> float | None:
        return None if lost else _sum(list(values))

    return Component(
        domain,
        whole(e.joules for e in parts),
        whole(e.error_j for e in parts),
        whole(e.edge_error_j for e in parts),
        whole(e.clock_error_j for e in parts),
        max((e.interpolated_share for e in parts), default=0.0),
        tuple(sorted({e.source for e in parts}, key=directness)),
        any(e.source == ESTIMATE for e in parts),
        tuple(lost),
        whole(n.idle_j if n else None for n in nets),
        whole(n.net_j if n else None for n in nets),
        whole(n.error_j if n else None for n in nets),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None when there is nothing to add or one of it is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
