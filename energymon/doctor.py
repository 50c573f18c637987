"""Tells what this host can measure, and what to do about the rest."""

from __future__ import annotations

from energymon.clock import Clock
from energymon.priority import raise_priority
from energymon.sensors.discover import SensorConfig, discover

__all__ = ["doctor"]


def doctor(config: SensorConfig, interval_ns: int) -> int:
    """Print every sensor found or missing, with reason and remedy; return 1 when nothing is measured."""
    found = discover(config, interval_ns)
    try:
        clock = Clock()
        for sensor in found.sensors:
            for point in sensor.read(clock):
                channel = point.channel
                verdict = "found  " if point.joules is not None else "failing"
                line = f"{verdict}  {channel.domain:<4}  {channel.device:<12}  {channel.source}  {point.problem}"
                print(line.rstrip())
            for key, value in sensor.describe().items():
                if key not in ("sensor", "source", "channels"):
                    print(f"         {sensor.name} {key}: {value}")
        for gap in found.missing:
            print(f"missing  {gap.sensor}: {gap.reason}\n         {gap.remedy}")
        measures = any(c.source != "estimate" for sensor in found.sensors for c in sensor.channels)
        if not measures:
            print("nothing here measures energy; `run --estimate missing` estimates the CPU's, and says so")
        print(f"priority {_PRIORITY[raise_priority().split()[0]]}")
    finally:
        found.close()
    return 0 if measures else 1


_PRIORITY = {
    "realtime": "real-time scheduling is permitted",
    "nice": "a negative nice is permitted; real-time scheduling needs CAP_SYS_NICE or rtprio in limits.conf",
    "normal": "cannot be raised; ticks may come late under load: run as root, or grant CAP_SYS_NICE",
}
