"""Stores with content, made quickly, and what a bucket has of it."""

from energymon import Reading, Ticks
from tests.energymon.influx.bucket import Bucket

MS = 1_000_000
STEP = 100 * MS
T0 = 1_700_000_000_000 * MS
SERIES = (("package-0", "cpu", "rapl-perf"), ("package-0", "dram", "rapl-perf"), ("gpu-0", "gpu", "nvml-counter"))


def append(store, count, first=0, node="n"):
    """Append ticks of three readings each, five ticks a commit, as an agent does at 100 ms."""
    for at in range(first, first + count, 5):
        ticks = range(at, min(at + 5, first + count))
        store.append(
            [
                Reading(T0 + k * STEP, T0 + k * STEP + 1000 + i, node, *series, k * 1.1 + i)
                for k in ticks
                for i, series in enumerate(SERIES)
            ],
            [Ticks(T0 + k * STEP, node, k % 7 == 0) for k in ticks],
        )


def assert_whole(store, settings, end_ns=T0 + 10**6 * STEP):
    """Assert that the bucket has every reading and tick of the store, once."""
    with Bucket(settings) as there:
        got, expected = there.readings(T0, end_ns), store.readings(T0, end_ns)
        assert len(got) == len(expected)
        assert got == expected
        assert there.ticks(T0, end_ns) == store.ticks(T0, end_ns)
        assert there.events() == store.events()
        assert there.sessions() == store.sessions()
