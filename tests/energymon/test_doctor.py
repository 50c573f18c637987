import pytest

from energymon.cli.doctor import doctor
from energymon.errors import OptionError
from energymon.sensors.discover import SensorConfig

INTERVAL_NS = 20_000_000


@pytest.fixture
def told(capsys):
    """Run the doctor; return its exit status and what it printed."""

    def ask(seconds=0.3, **config):
        status = doctor(SensorConfig(**config), INTERVAL_NS, seconds)
        return status, capsys.readouterr().out

    return ask


def test_a_machine_without_sensors_gets_every_reason_and_remedy(told, tmp_path):
    status, text = told(sysfs=tmp_path, nvml=tmp_path / "none.so")
    assert status == 1
    assert "nothing here measures energy" in text
    for name in ("perf", "powercap", "nvml"):
        (at,) = [i for i, line in enumerate(text.splitlines()) if line[10:].startswith(f"{name} ")]
        assert text.splitlines()[at + 1].strip().startswith("-> ")
    assert "in the place of sensors" in text
    assert "late   p50" in text
    assert "priority" in text
    assert "\nclock " in text


def test_every_channel_is_told_with_its_source_and_period(told, rapl, boards, nvml_library):
    boards(1)
    with rapl.running():
        status, text = told(sysfs=rapl.root, nvml=nvml_library)
    assert status == 0
    lines = [line[10:].split() for line in text.splitlines()]
    found = {tuple(line[:3]) for line in lines}
    assert {("package-1", "dram", "rapl-powercap"), ("gpu-0", "gpu", "nvml-counter")} <= found
    (package,) = [line for line in lines if line[:3] == ["package-0", "cpu", "rapl-powercap"]]
    assert package[3:7] == ["a", "value", "is", "at"]
    assert "NVIDIA Fake, GPU-00000000, driver 580.00; counter updated every" in text
    assert "no other interface confirms this list" in text
    assert "skew   p50" in text


def test_a_socket_that_is_found_and_cannot_be_read_is_named_and_is_a_failure(told, rapl, tmp_path):
    energy = rapl.packages[1].path / "energy_uj"
    with rapl.running():
        assert told(seconds=0, sysfs=rapl.root, nvml=tmp_path / "none.so")[0] == 0
        energy.rename(energy.with_name("gone"))
        status, text = told(seconds=0, sysfs=rapl.root, nvml=tmp_path / "none.so")
    assert status == 1
    assert "unknown   cpu and the total: package-1 cpu" in text


def test_a_socket_without_a_zone_is_a_part_that_is_missing(told, rapl, tmp_path):
    for cpu, package in enumerate((0, 1, 0, 1)):
        topology = rapl.root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
    for name in ("intel-rapl:1", "intel-rapl:1:1"):
        (rapl.root / "class" / "powercap" / name).unlink()
    with rapl.running():
        status, text = told(seconds=0, sysfs=rapl.root, nvml=tmp_path / "none.so")
    assert status == 1
    assert "package-1" in text
    assert "unknown   cpu and the total: package-1 cpu" in text


def test_an_estimate_is_no_measurement(told, tmp_path):
    status, text = told(seconds=0, sysfs=tmp_path, nvml=tmp_path / "none.so", estimate=True, cpu_tdp_w=100.0)
    assert status == 1
    assert "estimate" in text
    assert "100 W at full load (--cpu-tdp-w), 12%" in text


@pytest.mark.parametrize("seconds", [-1, 4000, float("nan")])
def test_impossible_seconds_are_refused(seconds):
    with pytest.raises(OptionError, match="--seconds"):
        doctor(SensorConfig(), INTERVAL_NS, seconds)


def test_a_counter_that_contradicts_its_power_is_named_and_is_a_failure(told, boards, nvml_library, tmp_path):
    boards(1, watts={0: 522.0}, power_w={0: 300.0})
    status, text = told(seconds=3, sysfs=tmp_path, nvml=nvml_library)
    assert status == 1
    assert "disagree  nvml-counter of gpu-0 gpu has" in text
    assert "1.74 times as much" in text or "1.73 times as much" in text
    boards(1, watts={0: 522.0})
    status, text = told(seconds=2, sysfs=tmp_path, nvml=nvml_library)
    assert status == 0
    assert "disagree" not in text


def test_a_meter_at_the_wall_is_told_with_its_accuracy(told, tmp_path):
    folder = tmp_path / "class" / "hwmon" / "hwmon0"
    folder.mkdir(parents=True)
    for name, text in (("name", "power_meter"), ("power1_average", "251000000"), ("power1_accuracy", "90.0%")):
        (folder / name).write_text(f"{text}\n")
    status, text = told(seconds=0, sysfs=tmp_path, nvml=tmp_path / "none.so", wall=("hwmon",))
    assert status == 0
    assert "hwmon-power_meter wall  hwmon-power" in text
    assert f"{folder}: asked every 1 s; no part of the total" in text
    assert "± 10.0% of the joules (stated by the meter: power1_accuracy of hwmon)" in text
