import pytest

from energymon.errors import ConfigError, SensorError
from energymon.sensors.discover import SensorConfig, discover

INTERVAL_NS = 100_000_000


def sources(found):
    kinds = {c.source for sensor in found.sensors for c in sensor.channels}
    found.close()
    return kinds


def test_everything_that_is_there_is_taken(rapl, boards):
    with rapl.running():
        found = discover(SensorConfig(sysfs=rapl.root, nvml="fake_nvml", estimate=True), INTERVAL_NS)
    assert sources(found) == {"rapl-powercap", "nvml-counter"}


def test_cpu_energy_is_estimated_only_where_nothing_measures_it(tmp_path, boards):
    found = discover(SensorConfig(sysfs=tmp_path, nvml="fake_nvml", estimate=True), INTERVAL_NS)
    assert sources(found) == {"estimate", "nvml-counter"}


def test_nothing_is_estimated_unasked(tmp_path):
    found = discover(SensorConfig(sysfs=tmp_path, nvml="no_such_nvml"), INTERVAL_NS)
    assert sources(found) == set()
    assert {gap.sensor for gap in found.missing} == {"powercap", "nvml"}


def test_only_what_is_named_is_taken(rapl, boards):
    with rapl.running():
        found = discover(SensorConfig(sensors=("powercap",), sysfs=rapl.root), INTERVAL_NS)
    assert sources(found) == {"rapl-powercap"}


def test_a_named_sensor_that_is_missing_is_an_error_with_the_reason(tmp_path, rapl):
    with pytest.raises(SensorError, match=r"powercap was asked for.*has no RAPL zones"):
        discover(SensorConfig(sensors=("powercap",), sysfs=tmp_path), INTERVAL_NS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sensors": ("rapl",)}, "--sensors names rapl"),
        ({"cpu_tdp_w": 0.0}, "--cpu-tdp-w"),
        ({"cpu_tdp_w": float("nan")}, "--cpu-tdp-w"),
        ({"cpu_idle_fraction": 1.5}, "--cpu-idle-fraction"),
    ],
)
def test_impossible_options_are_refused_by_name(options, told):
    with pytest.raises(ConfigError, match=told):
        SensorConfig(**options)
