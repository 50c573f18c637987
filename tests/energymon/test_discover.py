import pytest

from energymon.errors import OptionError, SensorError
from energymon.sensors.discover import SensorConfig, discover

INTERVAL_NS = 100_000_000
NVML = {"nvml-counter", "nvml-power", "nvml-power-average"}


@pytest.fixture
def no_nvml(tmp_path):
    """An NVML library that is not there, whatever this host has."""
    return tmp_path / "none.so"


def sources(found):
    kinds = {c.source for sensor in found.sensors for c in sensor.channels}
    found.close()
    return kinds


@pytest.mark.process
def test_everything_that_is_there_is_taken(rapl, boards, nvml_library):
    with rapl.running():
        found = discover(SensorConfig(sysfs=rapl.root, nvml=nvml_library, estimate=True), INTERVAL_NS)
    assert sources(found) == {"rapl-powercap", *NVML}


@pytest.mark.process
def test_a_delay_that_is_known_is_in_the_age_of_its_source_alone(rapl, boards, nvml_library):
    with rapl.running():
        found = discover(SensorConfig(sysfs=rapl.root, nvml=nvml_library, delays_s={"nvml-counter": 0.5}), INTERVAL_NS)
    lags_s = {c["source"]: c["lag_s"] for sensor in found.sensors for c in sensor.describe()["channels"]}
    assert lags_s["nvml-counter"] >= 0.5 > lags_s["rapl-powercap"]
    found.close()


@pytest.mark.parametrize(("source", "delay_s"), [("nvml-power", 0.1), ("rapl", 0.1), ("nvml-counter", -0.1)])
def test_a_delay_of_no_counter_or_below_zero_is_refused(source, delay_s):
    with pytest.raises(OptionError, match=f"--delay-ms {source}="):
        SensorConfig(delays_s={source: delay_s}).check()


@pytest.mark.usefixtures("perf_allowed")
def test_both_interfaces_are_taken_when_both_are_named(plant):
    tree = plant("intel-one-socket")
    tree.pmu()
    with tree.running():
        found = discover(SensorConfig(sensors=("powercap", "perf"), sysfs=tree.root), INTERVAL_NS)
    assert [sensor.name for sensor in found.sensors] == ["perf", "powercap"]
    assert sources(found) == {"rapl-perf", "rapl-powercap"}


@pytest.mark.process
@pytest.mark.usefixtures("boards")
def test_cpu_energy_is_estimated_only_where_nothing_measures_it(tmp_path, nvml_library):
    found = discover(SensorConfig(sysfs=tmp_path, nvml=nvml_library, estimate=True), INTERVAL_NS)
    assert sources(found) == {"estimate", *NVML}


@pytest.mark.process
def test_no_cpu_is_estimated_beside_a_module_whose_counter_holds_it(tmp_path, boards, nvml_library):
    boards(1, modules=[0])
    found = discover(SensorConfig(sysfs=tmp_path, nvml=nvml_library, estimate=True), INTERVAL_NS)
    assert sources(found) == NVML


def test_nothing_is_estimated_unasked(tmp_path, no_nvml):
    found = discover(SensorConfig(sysfs=tmp_path, nvml=no_nvml), INTERVAL_NS)
    assert sources(found) == set()
    assert {gap.sensor for gap in found.missing} == {"perf", "powercap", "nvml"}


@pytest.mark.parametrize(("name", "reason"), [("powercap", "RAPL"), ("perf", "PMU"), ("nvml", "none.so")])
def test_a_named_sensor_that_is_missing_is_an_error_with_the_reason(tmp_path, no_nvml, name, reason):
    with pytest.raises(SensorError, match=rf"{name} .*{reason}"):
        discover(SensorConfig(sensors=(name,), sysfs=tmp_path, nvml=no_nvml), INTERVAL_NS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sensors": ("rapl",)}, "--sensors.* rapl"),
        ({"cpu_tdp_w": 0.0}, "--cpu-tdp-w"),
        ({"cpu_tdp_w": float("nan")}, "--cpu-tdp-w"),
        ({"cpu_idle_fraction": 1.5}, "--cpu-idle-fraction"),
    ],
)
def test_impossible_options_are_refused_by_name(options, told):
    with pytest.raises(OptionError, match=told):
        SensorConfig(**options).check()
