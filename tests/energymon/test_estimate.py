import os

import pytest

from energymon.sensors import base
from energymon.sensors.estimate import EstimateSensor
from tests.energymon.conftest import read

HZ = os.sysconf("SC_CLK_TCK")


class At:
    """A monotonic clock that stands still between settings."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


def line(**seconds) -> str:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    return "cpu  " + " ".join(str(round(seconds.get(name, 0) * HZ)) for name in names) + " 0 0\ncpu0 1 2 3\n"


@pytest.fixture
def at(monkeypatch):
    clock = At()
    monkeypatch.setattr(base, "time", clock)
    return clock


def measure(at, tmp_path, before, after, **options):
    stat = tmp_path / "stat"
    stat.write_text(before)
    sensor = EstimateSensor(stat=stat, cpus=4, **options)
    read(sensor)
    at.now_ns = 10 * 10**9
    stat.write_text(after)
    (point,) = read(sensor)
    sensor.close()
    return point


@pytest.mark.parametrize(
    ("before", "after", "idle_fraction", "joules"),
    [
        ({"idle": 40}, {"idle": 80}, 0.2, 200.0),
        ({"user": 1}, {"user": 31, "system": 10}, 0.2, 1000.0),
        # Waiting for disks and stolen time are idle.
        ({}, {"iowait": 20, "steal": 20}, 0, 0.0),
    ],
)
def test_a_host_draws_between_the_idle_share_of_its_tdp_and_all_of_it(
    at, tmp_path, before, after, idle_fraction, joules
):
    point = measure(at, tmp_path, line(**before), line(**after), tdp_w=100, idle_fraction=idle_fraction)
    assert point.joules == pytest.approx(joules)


def test_a_stat_file_of_another_form_is_a_problem(at, tmp_path):
    point = measure(at, tmp_path, line(), "nonsense\n")
    assert point.joules is None
    assert "nonsense" in point.problem


def test_this_host_can_be_estimated_and_says_that_it_is_an_estimate():
    sensor = EstimateSensor()
    first = read(sensor)[0]
    second = read(sensor)[0]
    sensor.close()
    assert first.channel.source == "estimate"
    assert second.joules > first.joules == 0.0
    assert sensor.describe()["tdp_w"] == pytest.approx(5.2 * os.cpu_count())
