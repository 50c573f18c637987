"""Compiled code that takes the ticks: what it brings, and what it leaves to Python."""

import ctypes
import os
import threading
import time
from itertools import pairwise

import pytest

from energymon.clock.monotonic import Clock, dither_ns, next_tick
from energymon.sampling.monitor import Monitor
from energymon.sampling.records import Gap, Sampled
from energymon.sensors.base import Operation
from energymon.sensors.estimate import EstimateSensor
from energymon.ticker.ticker import Reason, Ticker, ticker_library

pytestmark = pytest.mark.serial

MS = 1_000_000
INTERVAL_NS = 5 * MS


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "counter"
    path.write_bytes(b"42\n")
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


class Answers:
    """A function in Python behind a C function's address, with the buffer that it fills."""

    def __init__(self, function):
        self.buffer = (ctypes.c_char * 8)()
        self._kept = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(function)
        self.operation = Operation(
            8, function=ctypes.cast(self._kept, ctypes.c_void_p).value, buffer=ctypes.addressof(self.buffer)
        )


def make(*groups, slow_ns=10**9, offset_ns=None, interval_ns=INTERVAL_NS, readings=1, slots=None, **more):
    offset_ns = Clock().offset_ns if offset_ns is None else offset_ns
    return Ticker(
        ticker_library(),
        groups,
        interval_ns=interval_ns,
        offset_ns=offset_ns,
        readings=readings,
        slow_ns=slow_ns,
        slots=slots,
        **more,
    )


def soon():
    return next_tick(time.time_ns(), INTERVAL_NS)


def run_aside(ticker, due_ns):
    """Run a ticker on a thread; return the thread and the list that its answer will be in."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ticker.run(due_ns)))
    thread.start()
    return thread, answers


def test_every_tick_is_taken_on_the_grid_until_it_is_told_to_stop(file):
    ticker = make([Operation(16, fd=file, seeks=True)])
    due_ns = soon()
    last_ns = due_ns + 19 * INTERVAL_NS
    ticker.stop(last_ns)
    reason, next_ns = ticker.run(due_ns)
    taken = [*ticker.take()]
    late = 0
    while reason is Reason.LATE:
        # A busy machine woke it up too late for a tick.
        late += 1
        reason, next_ns = ticker.run(next_tick(time.time_ns(), INTERVAL_NS))
        taken += ticker.take()
    assert reason is Reason.STOPPED
    assert next_ns > last_ns
    grid = list(range(due_ns, last_ns + 1, INTERVAL_NS))
    # The first tick that is not before the last one ends it: a later one, where that was missed.
    ticks = [t.tick_ns for t in taken if t.tick_ns <= last_ns or not late]
    assert ticks == (grid if not late else sorted(set(ticks) & set(grid)))
    offset_ns = Clock().offset_ns
    for tick in taken:
        ((before_ns, answer, after_ns),) = tick.raw
        assert answer == b"42\n"
        assert tick.tick_ns - MS < before_ns + offset_ns <= after_ns + offset_ns < tick.tick_ns + INTERVAL_NS
    assert [*ticker.take()] == []


def test_answers_come_by_group_each_between_its_times(file):
    def fill(handle, buffer):
        ctypes.memmove(buffer, b"12345678", 8)
        return 0

    calls = Answers(fill)
    ticker = make([Operation(3, fd=file, seeks=True), calls.operation], [calls.operation], readings=2)
    ticker.stop(0)
    ticker.run(soon())
    (tick,) = [*ticker.take()]
    first, second = tick.raw
    assert (first[1], first[3], second[1]) == (b"42\n", b"12345678", b"12345678")
    times = [first[0], first[2], first[4], second[2]]
    assert times == sorted(times)
    assert first[4] == second[0]


def test_what_fails_is_told_and_ends_the_run(file):
    codes = iter([0, 0, 999, 0])
    calls = Answers(lambda handle, buffer: next(codes))
    ticker = make([calls.operation], [Operation(16, fd=file, seeks=True)])
    reason, _ = ticker.run(soon())
    assert reason is Reason.FAILED
    assert [tick.raw[0][1] for tick in [*ticker.take()]] == [bytes(8), bytes(8), 999]
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    ticker = make([Operation(16, fd=closed, seeks=True)])
    assert ticker.run(soon())[0] is Reason.FAILED
    ((_, error, _),) = next(ticker.take()).raw
    assert isinstance(error, OSError)
    assert error.strerror == "Bad file descriptor"


def test_a_slow_answer_a_late_tick_and_a_clock_that_was_set_are_left_to_python(file):
    def slow(handle, buffer):
        time.sleep(0.003)
        return 0

    calls = Answers(slow)
    ticker = make([calls.operation], slow_ns=MS)
    assert ticker.run(soon())[0] is Reason.SLOW
    assert len([*ticker.take()]) == 1
    reads = [Operation(16, fd=file, seeks=True)]
    due_ns = soon() - 10 * INTERVAL_NS
    ticker = make(reads)
    assert ticker.run(due_ns) == (Reason.LATE, due_ns)
    assert [*ticker.take()] == []
    ticker = make(reads, offset_ns=Clock().offset_ns + 10 * MS)
    assert ticker.run(soon())[0] is Reason.STEPPED
    assert [*ticker.take()] == []


def test_a_full_ring_ends_the_run_and_goes_on_when_it_is_emptied(file):
    ticker = make([Operation(16, fd=file, seeks=True)], interval_ns=MS, slots=7)
    due_ns = next_tick(time.time_ns(), MS)
    taken, full = [], 0
    deadline = time.monotonic() + 20
    while full < 3 and time.monotonic() < deadline:
        reason, due_ns = ticker.run(due_ns)
        assert reason in (Reason.FULL, Reason.LATE)
        full += reason is Reason.FULL
        if reason is Reason.LATE:  # a busy machine
            due_ns = next_tick(time.time_ns(), MS)
        taken += ticker.take()
    ticks = [tick.tick_ns for tick in taken]
    assert full == 3
    assert len(ticks) >= 3 * 7
    assert ticks == sorted(set(ticks))
    assert all(tick.raw[0][1] == b"42\n" for tick in taken)


def test_ticks_can_be_taken_out_while_it_runs_and_it_leaves_when_asked(file):
    ticker = make([Operation(16, fd=file, seeks=True)])
    thread, answers = run_aside(ticker, soon())
    taken = []
    for _ in range(20):
        time.sleep(0.01)
        taken += ticker.take()
    ticker.leave()
    thread.join(1)
    assert answers[0][0] in (Reason.LEFT, Reason.LATE)
    taken += ticker.take()
    assert len(taken) > 10
    assert {b.tick_ns - a.tick_ns for a, b in pairwise(taken)} == {INTERVAL_NS}


def test_who_is_at_work_is_told_and_may_be_abandoned(file):
    release = threading.Event()

    def hang(handle, buffer):
        release.wait(10)
        return 0

    calls = Answers(hang)
    reads = Operation(16, fd=file, seeks=True)
    ticker = make([reads, reads], [reads, calls.operation, reads], [reads])
    began_ns = time.monotonic_ns()
    thread, answers = run_aside(ticker, soon())
    while ticker.in_progress() is None or ticker.in_progress()[0] != 1:
        time.sleep(0.001)
        assert time.monotonic_ns() - began_ns < 20 * 10**9
    time.sleep(0.05)
    group, since_ns = ticker.in_progress()
    assert group == 1
    assert began_ns < since_ns < time.monotonic_ns() - 20 * MS
    ticker.abandon()
    release.set()
    thread.join(1)
    assert answers[0][0] is Reason.ABANDONED
    assert [*ticker.take()] == []
    left = ticker.left_with()
    assert [len(raw) for raw in left.raw] == [5], "of a group that was not done there is no answer"


def watch(sensors, interval_ns, seconds):
    records, failures = [], []
    monitor = Monitor(sensors, interval_ns, records.extend, failures.append)
    monitor.start()
    time.sleep(seconds)
    monitor.drain()
    monitor.stop()
    assert not failures
    return monitor, records


def test_a_monitor_of_quick_sensors_lets_it_run(monkeypatch):
    sensor = EstimateSensor()
    sampled = []
    original = sensor.sample
    monkeypatch.setattr(sensor, "sample", lambda: sampled.append(1) or original())
    monitor, records = watch([sensor], 10 * MS, 1.0)
    sensor.close()
    assert monitor.sampler.startswith("compiled")
    ticks = [record.tick_ns for record in records if isinstance(record, Sampled)]
    missed = sum((r.last_ns - r.first_ns) // r.interval_ns + 1 for r in records if isinstance(r, Gap))
    assert 95 <= len(ticks) + missed <= 102
    assert ticks == sorted(set(ticks))
    assert len(sampled) < len(ticks) / 2, "Python takes the unusual ones alone"


def test_without_a_compiler_python_takes_every_tick(monkeypatch):
    monkeypatch.setenv("ENERGYMON_COMPILED", "0")
    ticker_library.cache_clear()
    try:
        sensor = EstimateSensor()
        monitor, records = watch([sensor], 10 * MS, 0.5)
        sensor.close()
    finally:
        ticker_library.cache_clear()
    assert monitor.sampler == "Python: ENERGYMON_COMPILED=0"
    assert sum(isinstance(record, Sampled) for record in records) > 30


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and no memory of what was built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ticker_library.cache_clear()
    yield tmp_path / "joulefeed" / "native"
    ticker_library.cache_clear()


@pytest.mark.process
def test_what_others_can_write_is_not_loaded(fresh):
    ticker_library()
    (built,) = fresh.iterdir()
    built.unlink()  # what is loaded must not change
    built.write_bytes(b"not a library")
    built.chmod(0o777)
    ticker_library.cache_clear()
    assert not isinstance(ticker_library(), str), "it was built anew"
    fresh.chmod(0o777)
    built.unlink()
    built.write_bytes(b"not a library")
    ticker_library.cache_clear()
    assert not isinstance(ticker_library(), str), "and here without the cache"


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "said"), [("", "there is no C compiler (cc)"), ("broken", "ticker.c cannot be compiled")]
)
def test_why_there_is_none_is_told(fresh, monkeypatch, tmp_path, path, said):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "cc").write_text("#!/bin/sh\nexit 1\n")
    (broken / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "")
    assert said in ticker_library()
    assert list(fresh.iterdir()) == [], "no half of it is left"


def test_dithered_ticks_are_taken_as_late_as_the_clock_says(file):
    interval_ns = 20_000_000
    ticker = make([Operation(16, fd=file, seeks=True)], interval_ns=interval_ns, dither_ns=interval_ns)
    due_ns = next_tick(time.time_ns(), interval_ns)
    ticker.stop(due_ns + 20 * interval_ns)
    taken = []
    while not taken or taken[-1].tick_ns < due_ns + 20 * interval_ns:
        # On a busy host one may come late, which ends the run.
        reason, _ = ticker.run(taken[-1].tick_ns + interval_ns if taken else due_ns)
        taken += ticker.take()
        if reason is Reason.LATE:
            due_ns = next_tick(time.time_ns(), interval_ns)
            ticker.stop(due_ns + 20 * interval_ns)
            taken = []
    late_ns = [tick.raw[0][0] + Clock().offset_ns - tick.tick_ns for tick in taken]
    assert all(
        late >= dither_ns(tick.tick_ns, interval_ns) - 1_000_000 for late, tick in zip(late_ns, taken, strict=True)
    )
    assert len({dither_ns(tick.tick_ns, interval_ns) // 1_000_000 for tick in taken}) > 5


def test_a_wake_up_ends_the_run_before_the_tick(file):
    wake_fd = os.eventfd(0)
    ticker = make([Operation(16, fd=file, seeks=True)], wake_fd=wake_fd)
    due_ns = time.time_ns() + 5_000_000_000
    thread, answers = run_aside(ticker, due_ns)
    os.eventfd_write(wake_fd, 1)
    thread.join(timeout=4)
    os.close(wake_fd)
    assert answers == [(Reason.ASKED, due_ns)]
