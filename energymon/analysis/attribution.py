"""Joules of a window by domain, from one node's readings: the best source of each device, summed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args

from energymon.analysis.accuracy import Accuracy
from energymon.analysis.cross_checks import disagreements
from energymon.analysis.curve import SERIES, SeriesKey, curves
from energymon.analysis.integrate import Energy, Integral, net, require_order
from energymon.clock.monotonic import NS
from energymon.reading import DIRECTNESS, ESTIMATE, LAG_S, Baseline, Domain, Reading

DOMAINS: Final[tuple[Domain, ...]] = get_args(Domain)

Part = tuple[int, Iterable[Reading], tuple[int, int] | None]
"""Of a window: its end, ns of the readings' clock; the readings in it and those around it that the bound of the error
needs; and from when to when these are left out, as no tick was missed there."""

_FIGURES: Final = (
    *("joules", "error_j", "edge_error_j", "clock_error_j", "accuracy_j"),
    *("idle_j", "net_j", "net_error_j"),
)
"""What Energy and EnergyComponent have in common and is summed."""
_Energy = TypeVar("_Energy", bound="NodeEnergy")


@dataclass(frozen=True, slots=True)
class Channels:
    """The series that an agent samples, as it described them when it started."""

    devices: frozenset[tuple[str, Domain]]
    """Devices that make up each domain, readable or not; without a domain's estimates where any of it is measured."""
    lags: Mapping[SeriesKey, float]
    """How old the value that a sensor shows may be, s, where the sensor's own period was probed."""
    unreadable: Mapping[tuple[str, Domain], str] = field(default_factory=dict)
    """Devices that were found and could not be read when the agent started, and why; among `devices` too."""
    accuracies: Mapping[SeriesKey, Accuracy] = field(default_factory=dict)
    """How true the joules of a series are, as the agent knew it when it started."""


@dataclass(frozen=True, slots=True)
class EnergyComponent:
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
    accuracy_j: float | None = None
    """Bound of what the sensors themselves do not see or show wrongly; None when it is unknown of one of them."""
    idle_j: float | None = None
    """What the same devices would have drawn idle; None without a baseline of each."""
    net_j: float | None = None
    """Joules beyond that; may be negative."""
    net_error_j: float | None = None


@dataclass(frozen=True, slots=True)
class NodeEnergy:
    """What one node used in a window."""

    energies: tuple[Energy, ...]
    """Every series that covers the window; several may count the same joules."""
    best: tuple[Energy, ...]
    """The most direct series of every device."""
    components: tuple[EnergyComponent, ...]
    """`best` by domain, and in total; empty when nothing is known or expected."""
    disagreements: tuple[str, ...] = ()
    """Sources of the same joules that say differently, by more than their bounds and a tenth."""

    @property
    def total(self) -> EnergyComponent | None:
        """The total; None when nothing is known or expected."""
        return self.components[-1] if self.components else None

    def joules(self, domain: Domain) -> float | None:
        """Return the joules of one domain; None when they are unknown."""
        return next((c.joules for c in self.components if c.name == domain), None)


def energy_of(
    readings: Iterable[Reading] | Callable[[int, int], Iterable[Part]],
    channels: Channels,
    start_ns: int,
    end_ns: int,
    interval_ns: int,
    *,
    clock_error_ns: int = 0,
    baselines: Iterable[Baseline] | None = None,
    given: Mapping[Domain, Sequence[Energy]] = MappingProxyType({}),
) -> NodeEnergy:
    """Return what a node used in a window by series, by domain and in total, with the bounds of the errors.

    Every figure of joules comes from here. Raises WindowError for a window that ends before it starts.

    Args:
        readings: The node's readings, in any order; or the function that returns the parts of a long window one by one.
        channels: The series that its agent samples: a domain that lacks a device of these is unknown.
        start_ns: Start of the window, ns of the readings' clock.
        end_ns: End of the window, ns of the readings' clock.
        interval_ns: Time between two ticks, ns.
        clock_error_ns: How far the readings' clock may be from the one that the window is given in, ns (0).
        baselines: What each series draws when the node is idle; None for no net figures (None).
        given: Energies that take the place of all readings and devices of a domain (empty).
    """
    require_order(start_ns, end_ns)
    integral = Integral(start_ns, interval_ns=interval_ns, clock_error_ns=clock_error_ns, lags=channels.lags)
    parts: Iterable[Part] = readings(start_ns, end_ns) if callable(readings) else [(end_ns, readings, None)]
    for stop_ns, around, hole in parts:
        integral.add(curves(around), stop_ns, hole)
        if integral.lost:
            break
    # Where the GPU is another one, its module is too.
    replaced = {*given, *(("module",) if "gpu" in given else ())}
    energies = [energy for energy in integral.energies() if energy.domain not in replaced]
    for place, energy in enumerate(energies):
        known = channels.accuracies.get(SERIES(energy))
        if known is not None:
            accuracy_j = known.error_j(energy.joules, end_ns - start_ns, energy.interpolated_share)
            energies[place] = replace(energy, accuracy_j=accuracy_j, accuracy_origin=known.origin)
    energies += [energy for instead in given.values() for energy in instead]
    energies = net(energies, baselines or (), (end_ns - start_ns) / NS)
    best = best_sources(energies)
    if given:
        expected = frozenset((device, domain) for device, domain in channels.devices if domain not in replaced)
        channels = replace(channels, devices=expected)
    counted = components(best, channels)
    unlike = tuple(disagreements(energies, best, _measured(counted)))
    return NodeEnergy(tuple(energies), tuple(best), tuple(counted), unlike)


def _measured(components: Iterable[EnergyComponent]) -> set[str]:
    """Return the names of the components that are known and no estimate."""
    return {c.name for c in components if c.joules is not None and not c.estimated}


def channels_of(description: Mapping[str, Any], node: str) -> Channels:
    """Return the series that an agent samples on a node, from its session's description, which may be empty."""
    series = series_of(description.get("sensors") or ())
    measured = {c["domain"] for c in series if c["source"] != ESTIMATE}
    unreadable = {(gap["device"], gap["domain"]): gap["reason"] for gap in description.get("unreadable") or ()}
    counted = [c for c in series if c["source"] != ESTIMATE or c["domain"] not in measured]
    keys = [(node, c["device"], c["domain"], c["source"]) for c in series]
    return Channels(
        frozenset([*unreadable, *((c["device"], c["domain"]) for c in counted)]),
        {k: c["lag_s"] for k, c in zip(keys, series, strict=True) if c["lag_s"] is not None and c["source"] in LAG_S},
        unreadable,
        {k: Accuracy(**c["accuracy"]) for k, c in zip(keys, series, strict=True) if c["accuracy"] is not None},
    )


def series_of(sensors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every series of sensors that describe themselves, as JSON types.

    That is device, domain, source, lag_s, how old its value may be, s, or None, and accuracy, the fields of an
    Accuracy, or None.
    """
    return [
        {
            "device": channel["device"],
            "domain": channel["domain"],
            "source": channel.get("source", sensor.get("source", "")),
            "lag_s": channel.get("lag_s"),
            "accuracy": channel.get("accuracy"),
        }
        for sensor in sensors
        for channel in sensor.get("channels") or ()
    ]


def of_boards(energy: _Energy, channels: Channels, counted: Collection[str]) -> _Energy:
    """Return what a node used without the GPU boards, and the modules of boards, that do not count."""

    def counts(device: str, domain: str) -> bool:
        return domain not in ("gpu", "module") or device in counted

    energies = tuple(one for one in energy.energies if counts(one.device, one.domain))
    best = tuple(one for one in energy.best if counts(one.device, one.domain))
    expected = frozenset(part for part in channels.devices if counts(*part))
    parts = components(best, replace(channels, devices=expected))
    known = _measured(parts)
    if any(domain == "module" for _, domain in channels.devices - expected):
        # The processors are those of the hidden module too.
        known.discard("module")
    unlike = tuple(disagreements(energies, best, known))
    return replace(energy, energies=energies, best=best, components=tuple(parts), disagreements=unlike)


def divide_cpu_joules(
    energy: NodeEnergy, busy_s: float, used_s: Mapping[str, float | None], *, net: bool
) -> dict[str, float | None]:
    """Attribute a host's CPU joules by CPU time, no measurement; the parts and `other`, the rest, add up to them.

    A part whose CPU time is unknown is None and belongs to `other`. All are None where the joules are unknown, where
    the processors did nothing, and where the joules are negative: the host was not idle at its baseline.

    Args:
        energy: What the host used.
        busy_s: CPU time of all of its processors, s.
        used_s: CPU time by part, s.
        net: Whether joules net of idle are divided, or all.
    """
    cpu = next((one for one in energy.components if one.name == "cpu"), None)
    joules = None if cpu is None else cpu.net_j if net else cpu.joules
    if joules is None or joules < 0 or busy_s <= 0:
        return {**dict.fromkeys(used_s), "other": None}
    known = {name: value for name, value in used_s.items() if value is not None}
    # The counters of processes and of the host are not read at one instant.
    whole_s = max(busy_s, sum(known.values()))
    parts = {name: joules * value / whole_s for name, value in known.items()}
    return {**dict.fromkeys(used_s), **parts, "other": joules - sum(parts.values())}


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


def components(best: Collection[Energy], channels: Channels) -> list[EnergyComponent]:
    """Return a node's energy by domain, and in total, from the best source of each device.

    A domain of which a device has no figure is unknown, and so is the total. The total has modules in the place of
    their CPU, memory and GPU, and never the wall.
    """
    found = {(e.device, e.domain) for e in best}
    known: list[EnergyComponent] = []
    for domain in DOMAINS:
        expected = {device for device, of in channels.devices if of == domain}
        lost = sorted(device for device in expected if (device, domain) not in found)
        parts = [e for e in best if e.domain == domain and (e.device in expected or not expected)]
        if parts or lost:
            known.append(_sum_up(domain, parts, lost))
    if not known:
        return []
    modules = {e.device for e in best if e.domain == "module"} | {d for d, of in channels.devices if of == "module"}
    inside = {"wall", *(("cpu", "dram", "gpu") if modules else ())}
    outside = [c for c in known if c.name not in inside]
    boards = [e for e in best if modules and e.domain == "gpu" and e.device not in modules]
    lost = sorted(
        d for d, of in channels.devices if modules and of == "gpu" and (d, of) not in found and d not in modules
    )
    if boards or lost:
        outside.append(_sum_up("gpu", boards, lost))
    return [*known, add_up(outside) if outside else _sum_up("total", [], ["any part of the machine"])]


def add_up(parts: Sequence[EnergyComponent]) -> EnergyComponent:
    """Return the total of components that do not contain one another; unknown when one of them is."""
    lost = [device if c.name in ("total", device) else f"{device} {c.name}" for c in parts for device in c.lost]
    return _sum_up("total", parts, lost)


def _sum_up(
    name: Domain | Literal["total"], parts: Sequence[Energy] | Sequence[EnergyComponent], lost: Sequence[str]
) -> EnergyComponent:
    """Return the sum of the parts; unknown when a device is lost, as is each figure that one of the parts lacks."""
    sources = {source for p in parts for source in (p.sources if isinstance(p, EnergyComponent) else (p.source,))}
    sums: dict[str, float | None] = {}
    for figure in _FIGURES:
        values = [value for part in parts if (value := getattr(part, figure)) is not None]
        sums[figure] = sum(values) if values and len(values) == len(parts) and not lost else None
    return EnergyComponent(
        name=name,
        **sums,
        interpolated_share=max((part.interpolated_share for part in parts), default=0.0),
        sources=tuple(sorted(sources, key=directness)),
        estimated=ESTIMATE in sources,
        lost=tuple(lost),
    )
