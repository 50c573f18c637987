import pytest

from energymon.clock import Clock
from energymon.reading import START
from energymon.sensors.nvml import open_nvml

INTERVAL_NS = 100_000_000


@pytest.fixture
def opened(boards):
    def open_with(**state):
        boards(**state)
        return open_nvml(INTERVAL_NS, "fake_nvml")

    return open_with


def test_every_board_with_a_counter_is_a_series(opened):
    found = opened(boards=4)
    assert [(c.device, c.domain, c.source) for c in found.sensor.channels] == [
        (f"gpu-{i}", "gpu", "nvml-counter") for i in range(4)
    ]
    assert found.sensor.describe()["channels"][3]["uuid"] == "GPU-00000003"


def test_a_board_without_a_counter_has_its_power_integrated_and_says_so(opened):
    found = opened(boards=2, power_only=[1])
    assert [c.source for c in found.sensor.channels] == ["nvml-counter", "nvml-power"]
    clock = Clock()
    first, second = found.sensor.read(clock), found.sensor.read(clock)
    elapsed_s = (second[1].t_ns - first[1].t_ns) / 1e9
    assert second[1].joules == pytest.approx(300.0 * elapsed_s)


def test_a_sliced_board_is_refused_with_the_reason(opened):
    found = opened(boards=2, mig=[0])
    assert [c.device for c in found.sensor.channels] == ["gpu-1"]
    assert "MIG" in found.missing[0].reason


def test_a_board_that_falls_off_the_bus_is_a_problem_of_its_own(opened, boards):
    found, clock = opened(boards=2), Clock()
    found.sensor.read(clock)
    boards(boards=2, lost=[1])
    kept, lost = found.sensor.read(clock)
    assert kept.joules is not None
    assert lost.joules is None
    assert lost.problem == "gpu-1 (GPU-00000001): GPU is lost"


def test_a_reloaded_driver_begins_a_new_segment(opened, boards):
    found, clock = opened(boards=1), Clock()
    found.sensor.read(clock)
    boards(boards=1, reset=[0])
    assert "went back" in found.sensor.read(clock)[0].problem
    assert found.sensor.read(clock)[0].flags == START


def test_a_driver_that_does_not_answer_is_told(opened):
    found = opened(no_driver=True)
    assert found.sensor is None
    assert "Driver Not Loaded" in found.missing[0].reason


def test_no_board_at_all_is_told(opened):
    assert "no GPU" in opened(boards=0).missing[0].reason


def test_a_module_that_is_not_there_is_told():
    assert "no_such_nvml" in open_nvml(INTERVAL_NS, "no_such_nvml").missing[0].reason


@pytest.mark.gpu
def test_a_real_board_counts():
    found = open_nvml(INTERVAL_NS)
    if found.sensor is None:
        pytest.skip(f"no NVIDIA GPU: {found.missing[0]}")
    points = found.sensor.read(Clock())
    found.sensor.close()
    assert all(p.joules == 0.0 for p in points)
