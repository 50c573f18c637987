import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from energymon.reading import START
from energymon.sensors.nvml import open_nvml

INTERVAL_NS = 100_000_000
OFFSET_NS = time.time_ns() - time.monotonic_ns()
HERE = Path(__file__).parent
NO_GPU = 77
REPO = HERE.parents[1]


@pytest.fixture
def opened(boards, nvml_library):
    sensors = []

    def open_with(*args, **state):
        boards(*args, **state)
        found = open_nvml(INTERVAL_NS, nvml_library)
        sensors.extend(found.sensors)
        return found

    yield open_with
    for sensor in sensors:
        sensor.close()


def read(sensor):
    return sensor.decode(sensor.sample(), OFFSET_NS)


def by_source(sensor):
    return {point.channel.source: point for point in read(sensor)}


def sources(sensor):
    return [channel.source for channel in sensor.channels]


@pytest.mark.process
@pytest.mark.parametrize("library", ["fake", pytest.param("real", marks=pytest.mark.gpu)])
def test_what_holds_for_fake_board_holds(library, boards, request):
    argv = [sys.executable, HERE / "nvml" / "fake_board.py"]
    if library == "fake":
        argv.append(request.getfixturevalue("nvml_library"))
    done = subprocess.run(
        argv, cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=False
    )
    if done.returncode == NO_GPU and library == "real":
        pytest.skip(f"no NVIDIA GPU: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_board_is_a_sensor_with_counter_and_powers_in_one_call(opened):
    found = opened(4, modules=[0])
    boards = [{(c.device, c.domain) for c in sensor.channels} for sensor in found.sensors]
    module = {("gpu-0", "module"), ("gpu-0", "gpu")}
    assert boards == [module, *({(f"gpu-{i}", "gpu")} for i in range(1, 4))], "a module's counter is no GPU's"
    assert [c.source for c in found.sensors[0].channels if c.domain == "gpu"] == ["nvml-power", "nvml-power-average"]
    assert sources(found.sensors[3]) == ["nvml-counter", "nvml-power", "nvml-power-average"]
    assert len(found.sensors[3].sample()) == 3
    told = [sensor.describe() for sensor in found.sensors]
    assert told[3]["channels"][0]["uuid"] == "GPU-00000003"
    assert [one["module_power"] for one in told] == [True, False, False, False], "the CPU is in a module's counter"


def test_the_power_of_a_module_is_apart_from_that_of_its_gpu(opened):
    (sensor,) = opened(1, modules=[0], watts={0: 600.0}, gpu_w={0: 400.0}).sensors
    watts = {(p.channel.domain, p.channel.source): p.watts for p in read(sensor)}
    powers = ("nvml-power", "nvml-power-average")
    assert watts == {
        ("module", "nvml-counter"): None,
        **{("module", source): pytest.approx(600) for source in powers},
        **{("gpu", source): pytest.approx(400) for source in powers},
    }


def test_counter_and_integrated_power_tell_the_same_joules(opened):
    (sensor,) = opened(1, watts={0: 250.0}).sensors
    first = by_source(sensor)
    time.sleep(0.2)
    second = by_source(sensor)
    elapsed_s = (second["nvml-counter"].t_ns - first["nvml-counter"].t_ns) / 1e9
    # The counter is in whole millijoules, and the wall clock that tells its times may be slewed.
    assert second["nvml-counter"].joules == pytest.approx(250 * elapsed_s, abs=0.05)
    assert second["nvml-power"].joules == pytest.approx(250 * elapsed_s, abs=0.05)


def test_a_values_own_time_is_taken(opened):
    (sensor,) = opened(1, period_ms={0: 100.0}).sensors
    for _ in range(5):
        raw = sensor.sample()
        updated_ns = sensor.decode(raw, OFFSET_NS)[0].t_ns - OFFSET_NS
        assert raw[0] - 101_000_000 < updated_ns <= raw[2]
        assert min(updated_ns % 100_000_000, -updated_ns % 100_000_000) < 1_000_000
        time.sleep(0.03)


@pytest.mark.parametrize("timestamp", [1, 2])
def test_a_time_that_cannot_be_true_gives_way_to_the_middle_of_the_reading(opened, timestamp):
    (sensor,) = opened(1, timestamp={0: timestamp}).sensors
    raw = sensor.sample()
    assert {point.t_ns - 10**18 for point in sensor.decode(raw, 10**18)} == {(raw[0] + raw[2]) // 2}


def test_times_never_run_backwards_when_the_driver_changes_its_mind(opened, boards):
    (sensor,) = opened(1, timestamp={0: 3}).sensors
    times = [read(sensor)[0].t_ns]
    for mode in (0, 3, 1, 0, 2, 3, 0):
        boards(1, timestamp={0: mode}, period_ms={0: 100.0})
        times.append(sensor.decode(sensor.sample(), OFFSET_NS)[0].t_ns)
    assert times[1:] == sorted(times[1:])


def test_the_period_of_the_counter_is_learnt_and_bounds_its_lag(opened):
    told = opened(2, period_ms={0: 20.0, 1: 50.0}).sensors[1].describe()
    assert told["counter_period_ms"] >= 45
    lags = {channel["source"]: channel["lag_s"] for channel in told["channels"]}
    assert 0.045 < lags["nvml-counter"] <= 0.1
    assert (lags["nvml-power"], lags["nvml-power-average"]) == (0.1, 1.0)


@pytest.mark.parametrize("period_ms", [140.0, 250.0])
def test_a_counter_slower_than_most_has_the_lag_that_it_shows(opened, period_ms):
    (sensor,) = opened(1, period_ms={0: period_ms}).sensors
    assert period_ms <= 1e3 * sensor.describe()["channels"][0]["lag_s"] < 2 * period_ms


def test_a_board_that_tells_power_alone_has_it_integrated(opened):
    found = opened(2, power_only=[1])
    assert sources(found.sensors[1]) == ["nvml-power"]
    first, second = read(found.sensors[1]), read(found.sensors[1])
    elapsed_s = (second[0].t_ns - first[0].t_ns) / 1e9
    assert second[0].joules == pytest.approx(300.0 * elapsed_s)


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ({"no_average_field": {0: 1}}, ["nvml-counter", "nvml-power"]),
        ({"no_instant_field": {0: 1}}, ["nvml-counter", "nvml-power-average", "nvml-power"]),
        ({"no_energy_field": {0: 1}}, ["nvml-power", "nvml-power-average", "nvml-counter"]),
        ({"counter_only": [0]}, ["nvml-counter"]),
        ({"no_energy_field": {0: 1}, "no_energy": {0: 1}}, ["nvml-power", "nvml-power-average"]),
    ],
)
def test_a_field_that_is_not_supported_is_absent_or_asked_for_by_its_function(opened, lacks, expected):
    (sensor,) = opened(1, **lacks).sensors
    assert sources(sensor) == expected
    assert [p.problem for p in read(sensor)] == [""] * len(expected)


def test_a_board_that_tells_nothing_is_missing(opened):
    found = opened(1, power_only=[0], no_power={0: 1})
    assert found.sensors == ()
    assert "gpu-0: Not Supported" in found.missing[0].reason


def test_a_board_that_falls_off_the_bus_is_a_problem_of_its_own_until_it_is_back(opened, boards):
    kept, lost = opened(2).sensors
    before = read(lost)[0].joules
    read(kept)
    boards(2, lost=[1])
    gone = read(lost)
    assert [p.problem for p in gone] == ["gpu-1 (GPU-00000001): GPU is lost"] * 3
    assert [p.joules for p in gone] == [None] * 3
    assert all(p.joules is not None for p in read(kept))
    boards(2)
    back = read(lost)
    assert [p.problem for p in back] == [""] * 3
    assert back[0].flags == ""
    assert back[0].joules >= before


def test_a_board_that_was_reset_while_it_was_lost_begins_a_new_segment_though_its_counter_is_higher(opened, boards):
    (sensor,) = opened(1, base_mj={0: 0.0}, origin_ns={0: time.monotonic_ns()}).sensors
    read(sensor)
    before = by_source(sensor)["nvml-counter"].joules
    boards(1, lost=[0])
    read(sensor)
    time.sleep(0.5)
    # It has drawn 300 W since the driver was loaded for the first time, and far more since the second.
    boards(1, base_mj={0: 700_000.0}, origin_ns={0: time.monotonic_ns()})
    back = by_source(sensor)["nvml-counter"]
    assert (back.joules, back.flags) == (before, START)
    assert "may have been reset" in back.problem


def test_a_reloaded_driver_begins_a_new_segment(opened, boards):
    (sensor,) = opened(1).sensors
    read(sensor)
    boards(1, reset=[0])
    assert "went back" in read(sensor)[0].problem
    assert read(sensor)[0].flags == START
