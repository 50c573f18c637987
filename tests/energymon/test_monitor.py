import threading
import time

import pytest

from energymon.clock import Clock
from energymon.monitor import ClockStep, Gap, Monitor, TickPoints
from energymon.sensors.base import Channel, Point

MS = 1_000_000
INTERVAL_NS = 20 * MS


class Steady:
    """A sensor that always answers; `before` is called with the number of the reading."""

    def __init__(self, name="steady", before=lambda count: None):
        self.name = name
        self.channels = (Channel(name, "cpu", "estimate"),)
        self.count = 0
        self._before = before

    def read(self, clock):
        self.count += 1
        self._before(self.count)
        return [Point(self.channels[0], clock.utc_ns(), float(self.count))]

    def describe(self):
        return {}

    def close(self):
        pass


def watch(sensors, seconds, clock=None):
    """Run a monitor over `sensors`; return its records and failures."""
    records, failures = [], []
    monitor = Monitor(sensors, INTERVAL_NS, records.append, failures.append, clock)
    monitor.start()
    time.sleep(seconds)
    monitor.stop()
    return records, failures


def ticks(records):
    return [r for r in records if isinstance(r, TickPoints)]


def test_every_tick_lies_on_the_grid_and_has_every_sensor():
    records, failures = watch([Steady("a"), Steady("b"), Steady("c")], 0.3)
    assert not failures
    whole = [t for t in ticks(records) if t.whole]
    assert len(whole) > 3
    for tick in whole:
        assert tick.tick_ns % INTERVAL_NS == 0
        assert {p.channel.device for p in tick.points} == {"a", "b", "c"}
        assert all(p.t_ns >= tick.tick_ns for p in tick.points)


def test_ticks_and_gaps_together_leave_no_tick_out():
    records, _ = watch([Steady(before=lambda count: time.sleep(0.07) if count == 3 else None)], 0.4)
    seen = [t.tick_ns for t in ticks(records)]
    for gap in records:
        if isinstance(gap, Gap):
            seen += range(gap.first_ns, gap.last_ns + 1, INTERVAL_NS)
    assert any(isinstance(r, Gap) for r in records)
    assert sorted(seen) == list(range(min(seen), max(seen) + 1, INTERVAL_NS))


def test_a_sensor_that_hangs_holds_up_no_other_and_its_late_answer_is_kept():
    hangs = Steady("hangs", before=lambda count: time.sleep(0.15) if count == 2 else None)
    steady = Steady("steady")
    records, failures = watch([steady, hangs], 0.5)
    assert not failures
    late = [t for t in ticks(records) if t.late]
    assert [p.joules for t in late for p in t.points] == [2.0]
    assert steady.count > hangs.count
    alone = [t for t in ticks(records) if not t.late and [p.channel.device for p in t.points] == ["steady"]]
    assert alone
    assert not any(t.whole for t in alone)
    assert [t for t in ticks(records) if t.whole and t.tick_ns > late[0].tick_ns], "it takes part again"


def test_a_channel_without_a_value_makes_the_tick_a_missed_one():
    class Broken(Steady):
        def read(self, clock):
            return [Point(self.channels[0], clock.utc_ns(), None, problem="gone")]

    records, _ = watch([Broken()], 0.1)
    assert not any(t.whole for t in ticks(records))


def test_stopping_takes_one_more_tick():
    records = []
    monitor = Monitor([Steady()], 500 * MS, records.append, lambda error: None)
    monitor.start()
    asked_ns = time.time_ns()
    monitor.stop()
    assert ticks(records)[-1].points[0].t_ns >= asked_ns


def test_stopping_does_not_wait_for_a_tick_that_is_far_off():
    monitor = Monitor([Steady()], 10**10, lambda record: None, lambda error: None)
    while time.time_ns() % 10**10 > 8 * 10**9:
        time.sleep(0.1)
    monitor.start()
    monitor.stop()
    assert not [t for t in threading.enumerate() if t.name == "timekeeper"]


def test_no_thread_is_left():
    before = threading.active_count()
    watch([Steady("a"), Steady("b")], 0.05)
    assert threading.active_count() == before


def test_an_unforeseen_exception_of_a_sensor_is_told_to_the_owner():
    def fail(count):
        raise ZeroDivisionError

    for sensors in ([Steady(before=fail)], [Steady(), Steady(before=fail)]):
        _, failures = watch(sensors, 0.1)
        assert [type(error) for error in failures] == [ZeroDivisionError]


@pytest.mark.parametrize("step_ms", [300, -100])
def test_a_wall_clock_that_is_set_is_followed_and_no_tick_is_taken_twice(monkeypatch, step_ms):
    clock = Clock()
    honest, when = clock.sync, time.monotonic() + 0.15

    def sync():
        if time.monotonic() < when or stepped:
            return 0
        stepped.append(True)
        clock.offset_ns += step_ms * MS
        return step_ms * MS

    stepped: list[bool] = []

    class Set:
        utc_ns = clock.utc_ns
        offset_ns = property(lambda self: clock.offset_ns)

    Set.sync = staticmethod(sync)
    assert honest() == 0
    records, failures = watch([Steady()], 0.5, Set())
    assert not failures
    assert [r.step_ns for r in records if isinstance(r, ClockStep)] == [step_ms * MS]
    taken = [t.tick_ns for t in ticks(records)]
    assert taken == sorted(set(taken))
    assert any(isinstance(r, Gap) for r in records) or step_ms < 0
