"""An emulated device runs one step after the other, and a host that wakes up late does not delay it."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from harness.cell import epoch as epoch_module
from harness.cell.epoch import run_epoch
from harness.errors import ConfigError
from harness.workloads import emulated
from harness.workloads import make_step as make_accelerator_step
from harness.workloads.classification import ResNet50
from harness.workloads.emulated import EmulatedStep
from loaders.base import Batch

MS = 1_000_000
NOMINAL_MS = 70.0


class Host:
    """Has the functions of the module time. Each sleep ends `late_ms` too late."""

    def __init__(self, late_ms=0.0):
        self.late_ms = late_ms
        self._now_ms, self._cpu_ms = 1000.0, 0.0

    def monotonic_ns(self):
        return round(self._now_ms * MS)

    def thread_time_ns(self):
        return round(self._cpu_ms * MS)

    def sleep(self, seconds):
        self._now_ms += 1e3 * seconds + self.late_ms

    def block(self, ms):
        self._now_ms += ms

    def compute(self, ms):
        self._now_ms += ms
        self._cpu_ms += ms


@pytest.fixture
def host(monkeypatch):
    made = Host()
    monkeypatch.setattr(emulated, "time", made)
    monkeypatch.setattr(epoch_module, "time", made)
    return made


def batches(count, bring=lambda number: None):
    """Return a loader of batches of 10 samples; `bring` is called before each."""

    def epoch(_):
        for number in range(count):
            bring(number)
            yield Batch(np.arange(10), np.zeros(10), np.zeros(10), nbytes=10)

    return SimpleNamespace(epoch=epoch)


def make_step():
    return EmulatedStep.assumed(NOMINAL_MS / 10 / 1e3, 1.0)


def times_ms(records):
    """Return the waits and the steps, ms."""
    return [one.wait_ns / MS for one in records], [one.step_ns / MS for one in records]


def test_batches_that_are_there_make_steps_one_after_the_other_however_late_the_host_wakes(host):
    host.late_ms = 8.0
    began = host.monotonic_ns()
    waits, steps = times_ms(run_epoch(batches(50), make_step(), 1))
    assert steps == [NOMINAL_MS] * 50
    assert waits == [0.0] * 50
    # The host is late once more at the end.
    assert (host.monotonic_ns() - began) / MS == pytest.approx(50 * NOMINAL_MS + 8.0)


def test_the_device_waits_as_long_as_the_loader_computes_in_the_loop(host):
    host.late_ms = 8.0
    waits, steps = times_ms(run_epoch(batches(4, lambda _: host.compute(30.0)), make_step(), 1))
    assert waits == pytest.approx([30.0] * 4)
    assert steps == [NOMINAL_MS] * 4


def test_the_device_waits_from_the_end_of_its_step_until_a_batch_comes_from_elsewhere(host):
    host.late_ms = 8.0
    records = run_epoch(batches(4, lambda _: host.block(30.0)), make_step(), 1)
    waits, steps = times_ms(records)
    # The host asks 8 ms late, and the batch would not have come sooner.
    assert waits == pytest.approx([30.0, 38.0, 38.0, 38.0])
    assert steps == [NOMINAL_MS] * 4


def test_a_host_that_is_later_than_a_whole_step_makes_the_step_longer(host):
    host.late_ms = 3 * NOMINAL_MS
    began = host.monotonic_ns()
    waits, steps = times_ms(run_epoch(batches(4), make_step(), 1))
    assert waits == [0.0] * 4
    assert steps == [NOMINAL_MS, 3 * NOMINAL_MS] * 2
    assert sum(steps) == (host.monotonic_ns() - began) / MS


def test_a_host_that_was_late_before_the_epoch_takes_no_time_from_it(host):
    step = make_step()
    host.late_ms = 8.0
    run_epoch(batches(2), step, 0)
    began = host.monotonic_ns()
    records = run_epoch(batches(2), step, 1)
    assert min(times_ms(records)[0]) == 0.0
    assert sum(one.wait_ns + one.step_ns for one in records) == step.span_ns[1] - began


def test_gradients_but_the_last_ones_are_reduced_while_the_step_goes_on(host):
    for needs_ms, last_ms, sync_ms in ((10.0, 0.0, 0.0), (10.0, 3.0, 3.0), (NOMINAL_MS, 3.0, NOMINAL_MS / 3)):
        step = make_step()
        step.synchronise(Gradients(host, needs_ms, last_ms))
        host.late_ms = 0.0
        (record,) = run_epoch(batches(1), step, 1)
        assert record.sync_ns / MS == pytest.approx(sync_ms)
        assert record.step_ns / MS == pytest.approx(NOMINAL_MS + sync_ms)


def test_the_hosts_share_of_a_step_runs_beside_the_device_and_is_named():
    accelerator = {"kind": "emulated", "seconds_per_sample": 0.002, "host_cpu_ms": 5}
    step = make_accelerator_step(ResNet50(batch_size=10), accelerator, seed=0)
    before = time.thread_time()
    (record,) = run_epoch(batches(1), step, 1)
    assert time.thread_time() - before >= 0.005
    assert record.step_ns >= 20 * MS
    assert step.label == "emulated: assumed 0.002 s a sample, 5 ms of the host's CPU a step"
    with pytest.raises(ConfigError, match=r"^accelerator\.host_cpu_ms=-1: expected a number, 0 or more"):
        make_accelerator_step(ResNet50(batch_size=10), accelerator | {"host_cpu_ms": -1}, seed=0)


class Gradients:
    """All-reduced `needs_ms` after the start, the last ones `last_ms` after the end of the step."""

    nbytes = 1

    def __init__(self, host, needs_ms, last_ms):
        self._host, self._needs_ns, self._last_ms = host, needs_ms * MS, last_ms

    def start(self):
        self._there_ns = self._host.monotonic_ns() + self._needs_ns

    def finish(self):
        left_ns = self._there_ns - self._host.monotonic_ns()
        self._host.block(max(self._last_ms, left_ns / MS))
