"""Which of RAPL's interfaces is read, and in which domains: perf on the kernel's real system call."""

import pytest

from energymon.sensors.rapl import open_rapl

pytestmark = pytest.mark.usefixtures("perf_allowed")

ONE_SOCKET = [("package-0", "cpu"), ("package-0", "dram")]


@pytest.fixture
def opened():
    """Open a tree that counts; return source and domains, and what is missing as text."""

    def open_tree(tree):
        with tree.running():
            found = open_rapl(tree.root)
        channels = [channel for sensor in found.sensors for channel in sensor.channels]
        for sensor in found.sensors:
            sensor.close()
        return {c.source for c in channels}, [(c.device, c.domain) for c in channels], [str(g) for g in found.missing]

    return open_tree


def test_perf_is_read_where_both_agree(plant, opened):
    tree = plant("intel-one-socket")
    tree.pmu()
    assert opened(tree) == ({"rapl-perf"}, ONE_SOCKET, [])


@pytest.mark.parametrize(("tree", "other"), [("intel-one-socket", "powercap"), ("container-masked", None)])
def test_what_confirms_the_list_is_told(plant, tree, other):
    planted = plant(tree)
    planted.pmu({"energy-pkg": 28, "energy-ram": 3}, {0: (0, 0)})
    found = open_rapl(planted.root)
    assert found.sensors[0].describe()["confirmed_by"] == other
    found.sensors[0].close()


def test_powercap_is_read_where_there_is_no_pmu_and_the_reason_is_told(plant, opened):
    sources, domains, missing = opened(plant("intel-one-socket"))
    assert (sources, domains) == ({"rapl-powercap"}, ONE_SOCKET)
    (told,) = missing
    assert told.startswith("perf: ")


def test_perf_alone_is_taken_as_it_is(plant, opened):
    tree = plant("container-masked")
    tree.pmu({"energy-pkg": 80, "energy-ram": 9}, {0: (0, 0)})
    assert opened(tree) == ({"rapl-perf"}, ONE_SOCKET, [])


def test_a_domain_that_powercap_alone_lists_is_left_out_and_named(plant, opened):
    tree = plant("intel-one-socket")
    tree.pmu({"energy-pkg": 28})
    sources, domains, (told,) = opened(tree)
    assert (sources, domains) == ({"rapl-perf"}, ONE_SOCKET[:1])
    assert told.startswith("powercap: dram of package-0 ")
    assert "--sensors powercap" in told


def test_a_domain_that_perf_alone_lists_is_left_out_and_named(plant, opened):
    tree = plant("amd-one-socket")
    tree.pmu({"energy-pkg": 28, "energy-ram": 3})
    sources, domains, (told,) = opened(tree)
    assert (sources, domains) == ({"rapl-perf"}, ONE_SOCKET[:1])
    assert told.startswith("perf: dram of package-0 ")


def test_lists_that_agree_in_nothing_give_nothing(plant, opened):
    tree = plant("intel-multi-die")
    tree.pmu({"energy-pkg": 28}, {0: (0, 0)})
    sources, domains, missing = opened(tree)
    assert (sources, domains) == (set(), [])
    assert len(missing) == 5


@pytest.mark.parametrize("name", ["intel-two-sockets", "amd-two-sockets", "intel-multi-die"])
def test_two_counters_are_two_series_by_perf_with_powercaps_names(plant, opened, online_cpus, name):
    if len(online_cpus) < 2:
        pytest.skip("one CPU online: two sockets need two")
    tree = plant(name)
    expected = opened(tree)[1]
    tree.pmu()
    assert opened(tree) == ({"rapl-perf"}, expected, [])


@pytest.mark.root
def test_powercap_is_read_where_perf_is_denied_and_a_zone_that_perf_does_not_list_stays_out(
    plant, public_path, as_nobody
):
    tree = plant("intel-one-socket")
    tree.pmu({"energy-pkg": 28})
    for zone in tree.zones:
        (zone.path / "energy_uj").chmod(0o444)
    root = public_path / "sys"
    tree.root.rename(root)
    with as_nobody(), tree.running():
        found = open_rapl(root)
    if found.sensors and found.sensors[0].name == "perf":
        pytest.skip("kernel.perf_event_paranoid lets everybody count here")
    assert [(c.source, c.domain) for c in found.sensors[0].channels] == [("rapl-powercap", "cpu")]
    assert [gap.sensor for gap in found.missing] == ["perf", "powercap"]
    found.sensors[0].close()
