import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energymon.sensors.discover import open_rapl
from energymon.sensors.powercap import open_powercap
from tests.energymon.conftest import channels, read


@pytest.fixture
def sensor(rapl):
    (sensor,) = open_powercap(rapl.root, settle_s=0).sensors
    yield sensor
    sensor.close()


@pytest.fixture
def taken(plant):
    """Open a tree by name; return its channels and what is missing."""

    def open_tree(name):
        tree = plant(name)
        with tree.running():
            found = open_powercap(tree.root)
        for sensor in found.sensors:
            sensor.close()
        return channels(found), found.missing

    return open_tree


TWO_SOCKETS = [("package-0", "cpu"), ("package-0", "dram"), ("package-1", "cpu"), ("package-1", "dram")]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("intel-one-socket", TWO_SOCKETS[:2]),
        ("intel-two-sockets", TWO_SOCKETS),
        ("intel-multi-die", [(f"package-0-die-{die}", domain) for die in range(2) for domain in ("cpu", "dram")]),
        ("amd-one-socket", [("package-0", "cpu")]),
        ("amd-two-sockets", [("package-0", "cpu"), ("package-1", "cpu")]),
    ],
)
def test_packages_and_dram_are_taken_and_nothing_that_repeats_them(taken, tree, expected):
    assert taken(tree) == (expected, ())


def test_a_socket_that_the_kernel_lists_once_a_die_is_counted_once(taken):
    found, missing = taken("amd-listed-by-die")
    assert found == [("package-0-die-0", "cpu")]
    assert [gap.reason.rpartition(" ")[0].rpartition("/")[2] for gap in missing] == ["energy_uj repeats"] * 2
    assert "Linux 6.9" in missing[0].remedy


@pytest.mark.parametrize("garbage", ["", "abc", "-5", "1e9", "99999999999999999999"])
def test_garbage_is_a_problem_of_its_zone_alone_and_costs_no_energy(rapl, sensor, garbage):
    package = rapl.packages[1]
    read(sensor)
    package.write(garbage)
    points = {p.channel.device + p.channel.domain: p for p in read(sensor)}
    broken = points.pop("package-1cpu")
    assert broken.joules is None
    assert "intel-rapl:1/energy_uj" in broken.problem
    assert all(p.joules is not None for p in points.values())
    package.show(package.start_uj + 1_000_000)
    assert read(sensor)[2].joules == pytest.approx(1.0)


def test_a_zone_that_vanishes_is_a_problem_and_is_read_again_when_it_is_back(rapl, sensor):
    package = rapl.packages[1]
    read(sensor)
    energy = package.path / "energy_uj"
    away = energy.with_name("away")
    package.truncate()
    energy.rename(away)
    assert read(sensor)[2].joules is None
    assert "No such file" in read(sensor)[2].problem
    away.rename(energy)
    package.show(package.start_uj + 500_000)
    assert read(sensor)[2].joules == pytest.approx(0.5)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.sampled_from(["", "abc", "-5", None]), min_size=1, max_size=30))
def test_any_pattern_of_faults_conserves_energy(rapl, faults):
    (sensor,) = open_powercap(rapl.root, settle_s=0).sensors
    package = rapl.packages[0]
    uj = package.shown_uj[-1]
    began = uj
    read(sensor)
    for fault in faults:
        uj += 1_000  # a quick machine reads every 0.1 ms: more would be more watts than a CPU can draw
        package.show(uj)
        if fault is not None:
            package.write(fault)
        read(sensor)
    package.show(uj)
    assert read(sensor)[0].joules == pytest.approx((uj - began) * 1e-6, rel=1e-9)
    sensor.close()


def test_a_host_without_the_tree_and_one_that_a_container_runtime_masks_are_told_apart(tmp_path, plant):
    (missing,) = open_powercap(tmp_path).missing
    assert "no RAPL zones" in missing.reason
    assert "intel_rapl_msr" in missing.remedy
    (missing,) = open_powercap(plant("container-masked").root).missing
    assert "container" in missing.remedy


def test_a_second_zone_of_a_name_is_named_as_missing_and_so_are_its_joules(plant):
    tree = plant("amd-two-sockets")
    (tree.packages[1].path / "name").write_text("package-0\n")
    for found in (open_powercap(tree.root, settle_s=0), open_rapl(tree.root, settle_s=0)):
        assert channels(found) == [("package-0", "cpu")]
        (gap,) = (gap for gap in found.missing if gap.parts)
        assert gap.parts == (("package-0 (intel-rapl:1)", "cpu"),)
        assert "intel-rapl:1/name is that of another zone too" in gap.reason
        found.sensors[0].close()


def test_a_counter_that_never_moves_is_left_out_and_named(rapl):
    rapl.drams[0].broken = True
    with rapl.running():
        found = open_powercap(rapl.root, settle_s=0.3)
    assert channels(found) == [TWO_SOCKETS[0], *TWO_SOCKETS[2:]]
    assert "intel-rapl:0:1/energy_uj" in found.missing[0].reason
    found.sensors[0].close()


@pytest.mark.root
def test_an_unreadable_counter_names_the_file_and_the_remedy(rapl, public_path, as_nobody):
    root = public_path / "sys"
    rapl.root.rename(root)
    with as_nobody():
        found = open_powercap(root)
    assert found.sensors == ()
    assert "intel-rapl:0/energy_uj: " in found.missing[0].reason
    assert "chmod" in found.missing[0].remedy


@pytest.mark.parametrize(
    ("limits_w", "drawn_w", "measures"),
    [
        # A part of 15 W with its limit for seconds; one that lists its long-term limit alone; a desktop part whose
        # board has no limit; a processor without any.
        ({"0_max_power": 15, "0_power_limit": 20, "1_power_limit": 64}, 64, True),
        ({"0_max_power": 15}, 64, True),
        ({"0_max_power": 65, "1_max_power": 0, "1_power_limit": 4095.875}, 253, True),
        ({}, 500, True),
        ({"0_max_power": 15}, 5000, False),
    ],
)
def test_what_a_zone_can_draw_goes_by_the_largest_of_its_limits(rapl, limits_w, drawn_w, measures):
    package = rapl.packages[0]
    for name, watts in limits_w.items():
        (package.path / f"constraint_{name}_uw").write_text(f"{round(watts * 1e6)}\n")
    (sensor,) = open_powercap(rapl.root, settle_s=0).sensors
    points = []
    for tick in range(20):
        package.show(package.start_uj + tick * round(drawn_w * 1e5))
        before_ns, text, after_ns, *rest = sensor.sample()
        later_ns = tick * 100_000_000
        raw = [before_ns + later_ns, text, after_ns + later_ns, *(t + later_ns if type(t) is int else t for t in rest)]
        points.append(sensor.decode(raw, 0)[0])
    sensor.close()
    assert all(point.joules is not None for point in points[1:]) is measures
