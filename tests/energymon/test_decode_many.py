"""A block of ticks is decoded by the channel as it is tick by tick."""

import contextlib
import time

import pytest

from energymon.clock.monotonic import Clock, next_tick
from energymon.sensors import domains, nvml_board
from energymon.sensors.discover import SensorConfig, discover
from energymon.sensors.estimate import EstimateSensor
from energymon.sensors.perf import open_perf
from energymon.ticker.ticker import Ticker, ticker_library

INTERVAL_NS = 5_000_000


@pytest.fixture(autouse=True)
def one_lag(monkeypatch):
    """Have both sets of sensors take the same for the counters' lag, which each would see a little otherwise."""
    for module in (domains, nvml_board):
        monkeypatch.setattr(module, "lag_of", lambda shown: 0.02)


def block_of(sensors, seconds, between=lambda: None):
    """Take ticks with the first of two sets of sensors, primed alike; return the clock's offset and the block."""
    offset_ns = Clock().offset_ns
    for one, other in zip(*sensors, strict=True):
        raw = one.sample()
        assert one.decode(raw, offset_ns) == other.decode(raw, offset_ns)
    ticker = Ticker(
        ticker_library(),
        [sensor.operations() for sensor in sensors[0]],
        interval_ns=INTERVAL_NS,
        offset_ns=offset_ns,
        readings=1,
        slow_ns=10**9,
    )
    between()
    block = None
    for _ in range(10):  # on a busy machine the time may be over before the first tick
        ticker.stop(time.time_ns() + round(seconds * 1e9))
        ticker.run(next_tick(time.time_ns(), INTERVAL_NS))
        if (block := ticker.take()) is not None:
            break
    assert block is not None
    assert len(block) == len(block.ticks())
    return offset_ns, block


def one_by_one(sensor, raws, offset_ns):
    """Return each tick's points."""
    return [sensor.decode(raw, offset_ns) for raw in raws]


@contextlib.contextmanager
def two_of(config):
    found = [discover(config, INTERVAL_NS) for _ in range(2)]
    try:
        yield [sensors.sensors for sensors in found]
    finally:
        for sensors in found:
            sensors.close()


def compare(sensors, offset_ns, block):
    """Decode both ways; return how many sensors were decoded by the channel."""
    ticks, groups = block.columns()
    taken = block.ticks()
    assert list(ticks) == [tick.tick_ns for tick in taken]
    quick = 0
    for place, (many, one) in enumerate(zip(*sensors, strict=True)):
        points = one_by_one(one, [tick.raw[place] for tick in taken], offset_ns)
        columns = many.decode_many(groups[place], offset_ns)
        if columns is None:
            # Nothing has changed, so it can still be done the other way.
            assert one_by_one(many, [tick.raw[place] for tick in taken], offset_ns) == points
            continue
        quick += 1
        assert [column.channel for column in columns] == [point.channel for point in points[0]]
        for i, column in enumerate(columns):
            assert list(column.t_ns) == [tick[i].t_ns for tick in points]
            assert list(column.joules) == [tick[i].joules for tick in points]
            assert {tick[i].flags for tick in points} == {""}
            for name in ("early_ns", "late_ns"):
                known = getattr(column, name)
                # What is nobody's to say repeats for ever.
                told = list(known) if isinstance(known, list) else [next(known)] * len(points)
                assert told == [getattr(tick[i], name) for tick in points]
    return quick


def test_packages_and_boards(plant, boards, nvml_library):
    tree = plant("intel-one-socket")
    boards(3)
    config = SensorConfig(sensors=("powercap", "nvml"), sysfs=tree.root, nvml=nvml_library)
    quick = []
    with tree.running():
        # A busy machine misses ticks, which is unusual.
        while 4 not in quick and len(quick) < 10:
            with two_of(config) as sensors:
                offset_ns, block = block_of(sensors, 0.1)
                assert len(sensors[0]) == 4
                quick.append(compare(sensors, offset_ns, block))
    assert 4 in quick


def test_a_wrap_is_unusual(rapl):
    with rapl.running(), two_of(SensorConfig(sensors=("powercap",), sysfs=rapl.root)) as sensors:
        offset_ns, block = block_of(sensors, 0.6)
        compare(sensors, offset_ns, block)
        last = sensors[0][0].decode(sensors[0][0].sample(), offset_ns)
        assert all(point.joules is not None for point in last)


@pytest.mark.parametrize(
    "state",
    [{"lost": [1]}, {"counter_only": [0]}, {"power_only": [0, 1]}, {"reset": [1]}],
    ids=lambda state: next(iter(state)),
)
def test_boards_that_have_something_about_them(boards, nvml_library, state):
    boards(2)
    with two_of(SensorConfig(sensors=("nvml",), nvml=nvml_library)) as sensors:
        offset_ns, block = block_of(sensors, 0.1, lambda: boards(2, **state))
        compare(sensors, offset_ns, block)


def test_a_file_that_is_emptied(rapl):
    with rapl.running(), two_of(SensorConfig(sensors=("powercap",), sysfs=rapl.root)) as sensors:
        offset_ns, block = block_of(sensors, 0.1, rapl.packages[1].truncate)
        assert compare(sensors, offset_ns, block) == 0


def test_perf_events(rapl, perf_allowed, online_cpus):
    rapl.pmu(cpus={min(online_cpus): (0, 0)})
    found = [open_perf(rapl.root, settle_s=0.05) for _ in range(2)]
    sensors = [discovery.sensors for discovery in found]
    try:
        offset_ns, block = block_of(sensors, 0.1)
        assert compare(sensors, offset_ns, block) == 1, "a counter bridges whatever is missed"
    finally:
        for several in sensors:
            for sensor in several:
                sensor.close()


def test_the_estimate():
    sensors = [[EstimateSensor()] for _ in range(2)]
    offset_ns, block = block_of(sensors, 0.1)
    compare(sensors, offset_ns, block)
    for (sensor,) in sensors:
        sensor.close()
