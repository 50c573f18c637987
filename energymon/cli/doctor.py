"""Shows what this host can measure, how well, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from energymon.analysis.accuracy import Accuracy, SensorCalibration, calibration_of, load_calibrations, with_accuracy
from energymon.analysis.attribution import channels_of, energy_of
from energymon.clock.monotonic import Clock
from energymon.errors import OptionError
from energymon.reading import ESTIMATE, Reading
from energymon.sampling.monitor import Monitor
from energymon.sampling.outages import Jitter
from energymon.sampling.records import Gap, Record, Sampled
from energymon.sensors.base import Part, Sensor, SensorPoint, wraps
from energymon.sensors.discover import SensorConfig, discover
from energymon.sensors.estimate import EstimateSensor

_MAX_S: Final = 3600.0
_PRIORITY: Final = {
    "realtime": "real-time scheduling is permitted",
    "nice": "a negative nice is permitted; real-time scheduling needs CAP_SYS_NICE or rtprio in limits.conf",
    "normal": "cannot be raised; ticks may come late under load: run as root, or grant CAP_SYS_NICE",
}


def doctor(config: SensorConfig, interval_ns: int, seconds: float = 10.0) -> int:
    """Print every sensor found or missing, and what ticks of `interval_ns` are like for so many seconds.

    Returns 1 when nothing is measured, when a part of the host was found and has no figure, and when sources contradict
    each other. Raises OptionError for seconds below 0 or above an hour.
    """
    if not 0 <= seconds <= _MAX_S:
        raise OptionError(f"--seconds {seconds}: expected 0 to {_MAX_S:.0f}")
    _say("host", [f"{platform.node()}, {platform.system()} {platform.release()}, {os.cpu_count()} CPUs"])
    lines: list[str] = []
    calibrations = load_calibrations(lines.append)
    found = discover(config, interval_ns)
    try:
        shown: list[SensorPoint] = []
        for sensor in found.sensors:
            points = sensor.decode(sensor.sample(), Clock().offset_ns)
            shown += points
            wraps_s, described = wraps([sensor]), sensor.describe()
            ages_s = {(c["device"], c["domain"], c["source"]): c.get("lag_s") for c in described["channels"]}
            lines += [_channel(point, ages_s.get(point.channel), wraps_s) for point in points]
            lines += _about(described)
            lines += _accuracies(described, calibrations, interval_ns)
        measures = any(p.joules is not None and p.channel.source != ESTIMATE for p in shown)
        if not measures:
            lines.append("nothing here measures energy; `run --estimate missing` estimates the CPU's, and says so")
        lines += [f"boards {found.boards}"] if found.boards else []
        _say("sensors", lines)
        gaps = ((f"{gap.sensor:<10} {gap.reason}", f"{'':<10} -> {gap.remedy}") for gap in found.missing)
        _say("missing", chain.from_iterable(gaps))
        known = {p.channel[:2] for p in shown if p.joules is not None}
        failing = [part for part in dict.fromkeys(p.channel[:2] for p in shown) if part not in known]
        unknown = [
            f"{part[1]} and the total: {' '.join(part)} has no figure: {why}"
            for part, why in found.unknown(interval_ns).items()
        ]
        unknown += [f"{domain} and the total: {device} {domain} fails" for device, domain in failing]
        _say("unknown", unknown)
        readings: list[Reading] = []
        _say("ticks", _ticks(found.sensors, interval_ns, seconds, readings))
        unlike = _disagreements(found.sensors, readings, interval_ns)
        _say("disagree", unlike)
    finally:
        found.close()
    from energymon.clock.chrony import clock_state

    _say("clock", clock_state())
    return 0 if measures and not unknown and not unlike else 1


def _say(topic: str, lines: Iterable[str]) -> None:
    """Print lines below each other, the topic before the first."""
    for line in lines:
        print(f"{topic:<10}{line}".rstrip())
        topic = ""


def _channel(point: SensorPoint, age_s: float | None, wraps_s: Mapping[Part, float]) -> str:
    channel = point.channel
    notes: list[str] = []
    if point.problem:
        notes.append(f"FAILS: {point.problem}")
    elif channel.source == ESTIMATE:
        notes.append("an estimate, no measurement")
    elif age_s is not None:
        notes.append(f"a value is at most {age_s * 1e3:.3g} ms old")
    if (wrap_s := wraps_s.get(channel[:2])) is not None:
        notes.append(f"may go unread for {wrap_s:.3g} s")
    return f"{channel.device:<15} {channel.domain:<5} {channel.source:<19} {', '.join(notes)}"


def _about(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield what else a sensor says of itself."""
    channels = described["channels"]
    for source, delay_s in {c["source"]: c["delay_s"] for c in channels if c.get("delay_s") is not None}.items():
        taken = f"no older than {delay_s * 1e3:g} ms" if delay_s else "none documented, 0 assumed"
        yield f"  delay of {source}, from an update to its value: {taken} (--delay-ms {source}=MS widens the bounds)"
    if "confirmed_by" in described:
        other = described["confirmed_by"]
        yield f"  {other} lists these domains too" if other else "  no other interface confirms this list"
    if "model" in described:
        counted_ms = described["counter_period_ms"]
        every = "counter not probed" if counted_ms is None else f"counter updated every {counted_ms:.3g} ms"
        yield f"  {described['model']}, {described['uuid']}, driver {described['driver']}; {every}"
    if described.get("slices") is not None:
        yield "  whole board in MIG mode: its slices have no counter of their own"
    if described.get("module_power"):
        yield "  its counter covers the whole module, CPU and memory too, which are not added to it"
    if "meter" in described:
        steps = "".join(f", counts in steps of {c['unit_j']:g} J" for c in channels if c["unit_j"] is not None)
        yield f"  {described['meter']}: asked every {described['period_s']:.3g} s{steps}; no part of the total"
    if "tdp_w" in described:
        load = f"{described['tdp_w']:.4g} W at full load ({described['tdp_from']})"
        yield f"  {load}, {described['idle_fraction']:.0%} of it idle"


def _accuracies(
    described: Mapping[str, Any], calibrations: Mapping[str, SensorCalibration], interval_ns: int
) -> Iterator[str]:
    """Yield what calibration found of each channel, and how true its joules are, or why nobody knows."""
    described = with_accuracy(described, calibrations, interval_ns)
    origins: dict[str, list[str]] = {}
    for channel in described["channels"]:
        name = f"{channel['device']} {channel['domain']} {channel['source']}"
        if found := calibration_of(calibrations, described, channel):
            yield f"  calibrated {name}: {found}"
        if "accuracy" in channel:
            origins.setdefault(str(Accuracy(**channel["accuracy"])), []).append(name)
    for text, names in origins.items():
        yield f"  accuracy of {', '.join(names)}: {text}"


def _disagreements(sensors: Sequence[Sensor], readings: Sequence[Reading], interval_ns: int) -> tuple[str, ...]:
    """Return which sources contradict each other in the time that all of them have readings of."""
    times: dict[tuple[str, str, str], list[int]] = {}
    for r in readings:
        times.setdefault((r.device, r.domain, r.source), []).append(r.t_ns)
    start_ns = max((seen[0] for seen in times.values()), default=0)
    end_ns = max(start_ns, min((seen[-1] for seen in times.values()), default=0))
    channels = channels_of({"sensors": [sensor.describe() for sensor in sensors]}, "")
    return energy_of(readings, channels, start_ns, end_ns, interval_ns).disagreements


def _ticks(sensors: Sequence[Sensor], interval_ns: int, seconds: float, readings: list[Reading]) -> Iterator[str]:
    """Sample for so long and yield how punctual that was; /proc/stat serves where there is no sensor."""
    stand_in = None if sensors else EstimateSensor()
    jitter = Jitter()
    failures: list[BaseException] = []

    def take(records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, Gap):
                jitter.missed += (record.last_ns - record.first_ns) // record.interval_ns + 1
            elif isinstance(record, Sampled) and not record.late:
                late_ns = record.start_ns + record.offset_ns + record.ahead_ns - record.tick_ns
                jitter.add(late_ns, record.end_ns - record.start_ns)
                if not record.whole:
                    jitter.missed += 1
            if sensors and isinstance(record, Sampled):
                readings.extend(
                    Reading(record.tick_ns, p.t_ns, "", *p.channel, p.joules, p.flags, p.early_ns, p.late_ns)
                    for i, raw in record.samples
                    for p in sensors[i].decode(raw, record.offset_ns)
                    if p.joules is not None
                )

    if seconds:
        monitor = Monitor([stand_in] if stand_in else sensors, interval_ns, take, failures.append)
        monitor.start()
        time.sleep(seconds)
        monitor.stop()
        if failures:
            raise failures[0]
        summary = jitter.summary()
        place = " (of /proc/stat, in the place of sensors)" if stand_in else ""
        counts = f"{summary['ticks']} sampled, {summary['missed']} missed"
        yield f"every {interval_ns / 1e6:g} ms for {seconds:g} s{place}: {counts}"
        for name, what in (("late", "from a tick to its first sample"), ("skew", "from the first sample to the last")):
            if f"{name}_max_us" in summary:
                values = "   ".join(f"{q} {_us(summary[f'{name}_{q}_us']):>9}" for q in ("p50", "p99", "max"))
                yield f"{name}   {values}   {what}"
        yield f"priority: {_PRIORITY[monitor.priority.split()[0]]}"
        yield f"sampler: {monitor.sampler}"
    if stand_in is not None:
        stand_in.close()


def _us(value_us: float) -> str:
    return f"{value_us / 1e3:.2f} ms" if value_us >= 1e3 else f"{value_us:.0f} µs"
