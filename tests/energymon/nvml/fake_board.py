"""What holds for every board of an NVML library, the driver's or the one that is named; exits 77 without a board.

In a process of its own, for a process has one libnvidia-ml.so.1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from energymon.reading import START
from energymon.sensors.nvml import open_nvml

NO_GPU = 77


def main(library: Path | None) -> int:
    """Read every board for a second at ten ticks a second."""
    found = open_nvml(100_000_000, library)
    if not found.sensors:
        print(*found.missing, sep="\n")
        return NO_GPU
    offset_ns = time.time_ns() - time.monotonic_ns()
    for sensor in found.sensors:
        told = sensor.describe()
        assert told["uuid"] and told["model"] and told["driver"], told
        assert {c["source"] for c in told["channels"]} <= {"nvml-counter", "nvml-power", "nvml-power-average"}
        assert all(0 < c["lag_s"] <= 1 for c in told["channels"]), told
        ticks = []
        for _ in range(10):
            before_ns = time.time_ns()
            points = sensor.decode(sensor.sample(), offset_ns)
            ticks.append(points)
            for point in points:
                assert point.problem == "", point
                assert -2_100_000_000 < point.t_ns - before_ns < 2_000_000_000, (point, before_ns)
            time.sleep(0.1)
        for series in zip(*ticks, strict=True):
            times, joules = [p.t_ns for p in series], [p.joules for p in series]
            assert series[0].flags == START
            assert joules[0] == 0.0
            assert times == sorted(times), times
            assert joules == sorted(joules), joules
            assert 0 < joules[-1] < 3000 * 3, joules
            watts = joules[-1] / ((times[-1] - times[0]) / 1e9)
            print(f"{sensor.name} {told['model']} {series[0].channel.source}: {watts:.1f} W", told["counter_period_ms"])
        sensor.close()
        sensor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else None))
