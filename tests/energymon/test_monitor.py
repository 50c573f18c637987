import threading
import time
from itertools import pairwise

import pytest

from energymon.clock import monotonic as clock_module
from energymon.clock.monotonic import Clock
from energymon.sampling.monitor import Monitor
from energymon.sampling.records import ClockStep, Gap, Sampled
from energymon.sensors.base import SensorChannel, SensorPoint
from tests.energymon.conftest import wait_for

MS = 1_000_000
INTERVAL_NS = 20 * MS


class Steady:
    """A sensor that always answers; `before` is called with the number of the sample, the first five being trials."""

    def __init__(self, name="steady", before=lambda count: None):
        self.name = name
        self.channels = (SensorChannel(name, "cpu", "estimate"),)
        self.count = 0
        self._before = before

    def sample(self):
        self.count += 1
        self._before(self.count)
        return self.count, time.monotonic_ns()

    def operations(self):
        return None

    def decode(self, raw, offset_ns):
        count, t_ns = raw
        return [SensorPoint(self.channels[0], t_ns + offset_ns, float(count))]

    def describe(self):
        return {}

    def close(self):
        pass


TRIALS = 5


def slow(count):
    """Make a sensor one that gets a thread of its own."""
    time.sleep(0.001)


def watch(sensors, seconds, clock=None):
    """Run a monitor over `sensors`; return its records and failures."""
    records, failures = [], []
    monitor = Monitor(sensors, INTERVAL_NS, records.extend, failures.append, clock)
    monitor.start()
    time.sleep(seconds)
    monitor.stop()
    return records, failures


def ticks(records):
    return [r for r in records if isinstance(r, Sampled)]


def brought(tick):
    """The sensors that a tick has samples of."""
    return {index for index, _ in tick.samples}


def assert_no_tick_is_left_out(records):
    """The ticks and the gaps together are the grid, each tick once."""
    seen = [t.tick_ns for t in ticks(records) if not t.late]
    for gap in records:
        if isinstance(gap, Gap):
            seen += range(gap.first_ns, gap.last_ns + 1, gap.interval_ns)
    assert sorted(seen) == list(range(min(seen), max(seen) + 1, INTERVAL_NS))


@pytest.mark.parametrize("before", [[lambda count: None] * 3, [lambda count: None, slow, slow], [slow] * 3])
def test_every_tick_lies_on_the_grid_and_has_every_sensor(before):
    sensors = [Steady(str(i), each) for i, each in enumerate(before)]
    records, failures = watch(sensors, 0.3)
    assert not failures
    whole = [t for t in ticks(records) if t.whole]
    assert len(whole) > 3
    for tick in whole:
        assert tick.tick_ns % INTERVAL_NS == 0
        assert brought(tick) == {0, 1, 2}
        for index, raw in tick.samples:
            (point,) = sensors[index].decode(raw, tick.offset_ns)
            assert point.t_ns >= tick.tick_ns


def test_ticks_and_gaps_together_leave_no_tick_out():
    records, _ = watch([Steady(before=lambda count: time.sleep(0.07) if count == TRIALS + 2 else None)], 0.4)
    assert any(isinstance(r, Gap) for r in records)
    assert_no_tick_is_left_out(records)


def test_a_slow_sensor_that_hangs_holds_up_no_other_and_its_late_answer_is_kept():
    hangs = Steady("hangs", before=lambda count: time.sleep(0.15 if count == TRIALS + 2 else 0.001))
    steady = Steady("steady")
    records, failures = watch([steady, hangs], 0.5)
    assert not failures
    late = [t for t in ticks(records) if t.late]
    assert [raw[0] for t in late for _, raw in t.samples] == [TRIALS + 2]
    assert steady.count > hangs.count
    alone = [t for t in ticks(records) if not t.late and brought(t) == {0}]
    assert alone
    assert not any(t.whole for t in alone)
    assert [t for t in ticks(records) if t.whole and t.tick_ns > late[0].tick_ns], "it takes part again"


def test_a_quick_sensor_that_begins_to_hang_is_left_alone_and_comes_back():
    hung, let_go = threading.Event(), threading.Event()

    def hang(count):
        if count == TRIALS + 2:
            hung.set()
            let_go.wait()

    records, failures = [], []
    steady, hangs = Steady("steady"), Steady("hangs", before=hang)
    monitor = Monitor([steady, hangs], INTERVAL_NS, records.extend, failures.append)
    monitor.start()
    assert hung.wait(5)
    while not ticks(records) or brought(ticks(records)[-1]) != {0}:
        time.sleep(0.05)
        monitor.unstick()
    let_go.set()
    wait_for(lambda: ticks(records)[-1].whole, 5)
    monitor.stop()
    assert not failures
    assert [t for t in ticks(records) if t.whole and t.tick_ns > max(t.tick_ns for t in ticks(records) if not t.whole)]
    answers = [raw[0] for t in ticks(records) for index, raw in t.samples if index == 1]
    assert TRIALS + 2 in answers
    assert answers == sorted(set(answers)), "a sample is handed over once, in order"
    assert_no_tick_is_left_out(records)


def test_a_quick_sensor_that_becomes_slow_no_longer_keeps_the_others_waiting():
    becomes = Steady("becomes", before=lambda count: time.sleep(0.06 if count > TRIALS + 4 else 0))
    records, failures = watch([Steady("steady"), becomes], 1.0)
    assert not failures
    last = [t for t in ticks(records) if not t.late][-20:]
    steps_ns = {b.tick_ns - a.tick_ns for a, b in pairwise(last)}
    assert steps_ns == {INTERVAL_NS}
    assert all(0 in brought(t) for t in last)
    assert any(1 in brought(t) for t in ticks(records)[-20:])


@pytest.mark.parametrize(("interval_ns", "linger_ns"), [(500 * MS, 0), (INTERVAL_NS, 5 * INTERVAL_NS)])
def test_stopping_takes_one_more_tick_or_those_in_which_values_may_come_late(interval_ns, linger_ns):
    records = []
    monitor = Monitor([Steady()], interval_ns, records.extend, lambda error: None, linger_ns=linger_ns)
    monitor.start()
    asked_ns = time.time_ns()
    monitor.stop()
    last = ticks(records)[-1]
    assert last.samples[0][1][1] + last.offset_ns >= asked_ns + linger_ns


def test_stopping_does_not_wait_for_a_tick_that_is_far_off():
    monitor = Monitor([Steady()], 10**10, lambda record: None, lambda error: None)
    while time.time_ns() % 10**10 > 8 * 10**9:
        time.sleep(0.1)
    monitor.start()
    monitor.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("sampler")]


def test_an_unforeseen_exception_of_a_sensor_is_told_to_the_owner():
    def fail(count):
        if count > TRIALS:
            raise ZeroDivisionError

    def fail_slowly(count):
        slow(count)
        fail(count)

    for sensors in ([Steady(before=fail)], [Steady(), Steady(before=fail_slowly)]):
        _, failures = watch(sensors, 0.1)
        assert [type(error) for error in failures] == [ZeroDivisionError]


@pytest.mark.parametrize("step_ms", [300, -100])
def test_a_wall_clock_that_is_set_is_told_and_ticks_go_on_as_they_were(monkeypatch, step_ms):
    clock, when = Clock(), time.monotonic() + 0.15
    wall = time.time_ns

    class Set:
        monotonic_ns = staticmethod(time.monotonic_ns)
        CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
        clock_gettime_ns = staticmethod(time.clock_gettime_ns)
        time_ns = staticmethod(lambda: wall() + (step_ms * MS if time.monotonic() > when else 0))

    monkeypatch.setattr(clock_module, "time", Set)
    records, failures = watch([Steady()], 0.5, clock)
    assert not failures
    (step,) = [r for r in records if isinstance(r, ClockStep)]
    assert step.step_ns == pytest.approx(step_ms * MS, abs=5 * MS)
    assert step.wall_ns == pytest.approx(step_ms * MS, abs=5 * MS)
    assert 0 <= step.within_ns < 10_000 * MS
    taken = [t.tick_ns for t in ticks(records)]
    assert taken == sorted(set(taken))
    assert_no_tick_is_left_out(records)
    for t in ticks(records):
        assert t.start_ns + t.offset_ns + t.ahead_ns >= t.tick_ns
    assert {t.ahead_ns == 0 for t in ticks(records)} == {True, False}
