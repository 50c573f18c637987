"""RAPL's perf sensor on the kernel's real perf_event_open, with a software event in RAPL's place."""

import time
from pathlib import Path

import pytest

from energymon.sensors.perf import domains, open_perf
from energymon.sensors.rapl_sensor import repeated
from tests.energymon.conftest import channels, read

pytestmark = pytest.mark.usefixtures("perf_allowed")

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
ONE_CPU = {0: (0, 0)}


@pytest.fixture
def client(plant):
    """One socket whose package draws 28 W and whose DRAM draws 3 W, while CPU 0 is there."""
    tree = plant("intel-one-socket")
    tree.pmu()
    return tree


@pytest.fixture
def sensor(client):
    (sensor,) = open_perf(client.root).sensors
    yield sensor
    sensor.close()


def test_package_and_dram_are_counted_and_nothing_that_holds_or_repeats_them(sensor):
    assert [(c.device, c.domain, c.source) for c in sensor.channels] == [
        ("package-0", "cpu", "rapl-perf"),
        ("package-0", "dram", "rapl-perf"),
    ]


def test_joules_follow_the_kernels_count(sensor):
    first = sensor.sample()
    time.sleep(0.05)
    second = sensor.sample()
    assert [p.joules for p in sensor.decode(first, 0)] == [0.0, 0.0]
    package, dram = sensor.decode(second, 0)
    least_s, most_s = (second[0] - first[2]) / 1e9, (second[2] - first[0]) / 1e9
    assert 28 * least_s * 0.99 < package.joules < 28 * most_s * 1.01
    assert dram.joules == pytest.approx(package.joules * 3 / 28, rel=0.01)


@pytest.mark.parametrize(
    ("cpus", "names"),
    [
        ({0: (0, 0), 7: (1, 0)}, ["package-0", "package-1"]),
        ({0: (0, 0), 7: (0, 1)}, ["package-0-die-0", "package-0-die-1"]),
        ({0: (0, 2)}, ["package-0"]),
    ],
)
def test_sockets_are_named_as_powercap_names_them(plant, cpus, names):
    tree = plant("intel-one-socket")
    tree.pmu({"energy-pkg": 80}, cpus)
    assert domains(tree.root) == [(name, "cpu") for name in names]


def test_a_cpu_that_is_not_there_is_named_and_the_other_sockets_are_counted(plant):
    tree = plant("intel-two-sockets")
    tree.pmu({"energy-pkg": 80}, {0: (0, 0), 100_000: (1, 0)})
    found = open_perf(tree.root)
    assert channels(found) == [("package-0", "cpu")]
    assert "package-1 on CPU 100000" in found.missing[0].reason
    found.sensors[0].close()


def test_an_event_that_never_counts_is_left_out_and_named(client):
    # Emulation faults (8) do not happen on these machines.
    (client.root / "devices" / "power" / "events" / "energy-ram").write_text("event=0x08\n")
    found = open_perf(client.root, settle_s=0.02)
    assert channels(found) == [("package-0", "cpu")]
    assert "dram of package-0" in found.missing[0].reason
    found.sensors[0].close()


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("type", "many", "many"),
        ("events/energy-pkg", "umask=1", "expected event=NUMBER in Joules"),
        ("events/energy-pkg.unit", "Watts", "expected event=NUMBER in Joules"),
        ("events/energy-pkg.scale", "0", "expected joules a count"),
        ("cpumask", "\n", "cpumask is empty"),
    ],
)
def test_what_a_pmu_cannot_hold_is_told(client, file, text, told):
    (client.root / "devices" / "power" / file).write_text(text)
    (gap,) = open_perf(client.root).missing
    assert told in gap.reason
    assert domains(client.root) == []


@pytest.mark.root
def test_without_permission_the_remedy_names_what_is_needed(public_path, as_nobody, client):
    if int(PARANOID.read_text()) <= 0:
        pytest.skip("kernel.perf_event_paranoid lets everybody count here")
    root = public_path / "sys"
    client.root.rename(root)
    with as_nobody():
        found = open_perf(root)
    (gap,) = found.missing
    assert found.sensors == ()
    assert f"kernel.perf_event_paranoid is {PARANOID.read_text().strip()}," in gap.reason
    assert "setcap cap_perfmon=ep /" in gap.remedy
    assert "root" in gap.remedy


def test_a_lost_descriptor_is_a_problem_and_the_count_begins_anew(sensor):
    read(sensor)
    time.sleep(0.02)
    before = read(sensor)[0].joules
    for group in sensor._files:
        group.close()
    lost = read(sensor)[0]
    assert lost.joules is None
    assert "package-0 on CPU 0: " in lost.problem
    again = read(sensor)[0]
    assert (again.flags, again.joules) == ("start", pytest.approx(before))
    assert "may have been reset" in again.problem


def test_descriptors_are_given_back(client):
    before = len(list(Path("/proc/self/fd").iterdir()))
    (sensor,) = open_perf(client.root).sensors
    read(sensor)
    sensor.close()
    sensor.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_dies_that_move_in_step_are_one_counter():
    def steps(ahead, speed):
        shown = [0]

        def read():
            shown[0] += 1
            return ahead + speed * (shown[0] // 4)

        return read

    moved = {"now": 0}

    def of_socket(ahead):
        def read():
            moved["now"] += 1
            return ahead + moved["now"] // 5

        return read

    one_counter = {("package-0-die-0", "cpu"): of_socket(0), ("package-0-die-1", "cpu"): of_socket(700)}
    assert repeated(one_counter, 1.0) == {("package-0-die-1", "cpu"): ("package-0-die-0", "cpu")}
    two_counters = {("package-0-die-0", "cpu"): steps(0, 3), ("package-0-die-1", "cpu"): steps(700, 2)}
    assert repeated(two_counters, 0.05) == {}
