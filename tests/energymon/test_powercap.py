import os
import tempfile
from pathlib import Path

import pytest

from energymon.clock import Clock
from energymon.sensors.powercap import open_powercap


@pytest.fixture
def sensor(rapl):
    sensor = open_powercap(rapl.root, settle_s=0).sensor
    yield sensor
    sensor.close()


def test_packages_and_dram_are_taken_and_nothing_that_repeats_them(sensor):
    assert [(c.device, c.domain) for c in sensor.channels] == [
        ("package-0", "cpu"),
        ("package-0", "dram"),
        ("package-1", "cpu"),
        ("package-1", "dram"),
    ]
    assert {c.source for c in sensor.channels} == {"rapl-powercap"}


def test_dies_of_a_package_are_series_of_their_own(rapl):
    for zone, name in zip(rapl.packages, ["package-0-die-0", "package-0-die-1"], strict=True):
        (zone.path / "name").write_text(name)
    found = open_powercap(rapl.root, settle_s=0)
    assert {c.device for c in found.sensor.channels} == {"package-0-die-0", "package-0-die-1"}
    found.sensor.close()


def test_joules_follow_the_counter_through_a_wrap(rapl, sensor):
    clock, package = Clock(), rapl.packages[0]
    sensor.read(clock)
    for _ in range(40):
        package.show(package.shown_uj[-1] + 1_000_000)
        first = sensor.read(clock)[0]
    assert package.shown_uj[-1] > package.range_uj
    assert first.joules == pytest.approx(40.0)


@pytest.mark.parametrize("garbage", ["", "abc", "-5", "1e9", "99999999999999999999"])
def test_garbage_is_a_problem_of_its_zone_alone_and_costs_no_energy(rapl, sensor, garbage):
    clock, package = Clock(), rapl.packages[1]
    sensor.read(clock)
    package.write(garbage)
    points = {p.channel.device + p.channel.domain: p for p in sensor.read(clock)}
    broken = points.pop("package-1cpu")
    assert broken.joules is None
    assert "intel-rapl:1/energy_uj" in broken.problem
    assert all(p.joules is not None for p in points.values())
    package.show(package.start_uj + 1_000_000)
    assert sensor.read(clock)[2].joules == pytest.approx(1.0)


def test_a_zone_that_vanishes_is_a_problem_and_is_read_again_when_it_is_back(rapl, sensor):
    clock, package = Clock(), rapl.packages[1]
    sensor.read(clock)
    energy = package.path / "energy_uj"
    away = energy.with_name("away")
    package.truncate()
    energy.rename(away)
    assert sensor.read(clock)[2].joules is None
    assert "No such file" in sensor.read(clock)[2].problem
    away.rename(energy)
    package.show(package.start_uj + 500_000)
    assert sensor.read(clock)[2].joules == pytest.approx(0.5)


def test_a_host_without_the_tree_is_told_with_a_remedy(tmp_path):
    found = open_powercap(tmp_path)
    assert found.sensor is None
    assert "no RAPL zones" in str(found.missing[0])
    assert "intel_rapl_msr" in found.missing[0].remedy


def test_a_tree_that_a_container_runtime_masks_is_told_apart(rapl):
    for zone in rapl.zones:
        (zone.path / "name").unlink()
    (missing,) = open_powercap(rapl.root, settle_s=0).missing
    assert "container" in missing.remedy


def test_one_zone_without_its_range_is_named_and_the_others_are_taken(rapl):
    (rapl.packages[0].path / "max_energy_range_uj").unlink()
    found = open_powercap(rapl.root, settle_s=0)
    assert len(found.sensor.channels) == 3
    assert "intel-rapl:0/energy_uj" in found.missing[0].reason
    found.sensor.close()


def test_a_counter_that_never_moves_is_left_out_and_named(rapl):
    rapl.drams[0].broken = True
    with rapl.running():
        found = open_powercap(rapl.root, settle_s=0.3)
    assert ("package-0", "dram") not in {(c.device, c.domain) for c in found.sensor.channels}
    assert len(found.sensor.channels) == 3
    assert "intel-rapl:0:1/energy_uj does not move" in found.missing[0].reason
    found.sensor.close()


def test_descriptors_are_given_back(rapl):
    before = len(list(Path("/proc/self/fd").iterdir()))
    sensor = open_powercap(rapl.root, settle_s=0).sensor
    sensor.close()
    sensor.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who is not")
def test_an_unreadable_counter_names_the_file_and_the_remedy(rapl):
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        root = Path(open_to_all) / "sys"
        rapl.root.rename(root)
        links = root / "class" / "powercap"
        for link in links.iterdir():
            target = root / link.readlink().relative_to(rapl.root)
            link.unlink()
            link.symlink_to(target)
        os.seteuid(65534)
        try:
            found = open_powercap(root)
        finally:
            os.seteuid(0)
    assert found.sensor is None
    assert "intel-rapl:0/energy_uj: permission denied" in found.missing[0].reason
    assert "chmod" in found.missing[0].remedy
