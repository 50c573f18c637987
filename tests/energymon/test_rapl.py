"""Which of RAPL's interfaces is read, and in which domains: perf on the kernel's real system call."""

import pytest

from energymon.sensors.discover import open_rapl

pytestmark = pytest.mark.usefixtures("perf_allowed")


@pytest.fixture
def opened():
    """Open a tree that counts; return source, domains, which interface confirms them, and the missing parts."""

    def open_tree(tree):
        with tree.running():
            found = open_rapl(tree.root)
        channels = [channel for sensor in found.sensors for channel in sensor.channels]
        confirmed_by = {sensor.describe()["confirmed_by"] for sensor in found.sensors}
        found.close()
        return {c.source for c in channels}, [(c.device, c.domain) for c in channels], confirmed_by, found.missing

    return open_tree


CPU, DRAM = ("package-0", "cpu"), ("package-0", "dram")
ONE_CPU = {0: (0, 0)}


@pytest.mark.parametrize(
    ("name", "watts", "source", "domains", "confirmed_by", "missing"),
    [
        ("intel-one-socket", {"energy-pkg": 28, "energy-ram": 3}, "rapl-perf", [CPU, DRAM], "powercap", []),
        # A container's runtime masks powercap: perf's list stands alone.
        ("container-masked", {"energy-pkg": 80, "energy-ram": 9}, "rapl-perf", [CPU, DRAM], None, []),
        ("intel-one-socket", None, "rapl-powercap", [CPU, DRAM], None, ["perf: "]),
        # What one of two lists has alone is left out and named.
        ("intel-one-socket", {"energy-pkg": 28}, "rapl-perf", [CPU], "powercap", ["powercap: dram of package-0 "]),
        ("amd-one-socket", {"energy-pkg": 28, "energy-ram": 3}, "rapl-perf", [CPU], "powercap", ["perf: dram of"]),
        ("intel-multi-die", {"energy-pkg": 28}, None, [], None, ["perf: cpu of", *["powercap: "] * 4]),
    ],
)
def test_the_better_interface_is_read_in_the_domains_that_both_agree_on(
    plant, opened, name, watts, source, domains, confirmed_by, missing
):
    tree = plant(name)
    if watts is not None:
        tree.pmu(watts, ONE_CPU)
    sources, found, confirmed, gaps = opened(tree)
    assert (sources, found) == ({source} - {None}, domains)
    assert confirmed == ({confirmed_by} if source else set())
    assert len(gaps) == len(missing)
    assert all(str(gap).startswith(words) for gap, words in zip(gaps, missing, strict=True))


def test_a_socket_in_one_list_alone_is_a_part_of_the_host_and_a_domain_that_no_list_confirms_is_none(plant, opened):
    tree = plant("intel-two-sockets")
    tree.pmu({"energy-pkg": 80}, ONE_CPU)
    assert [part for gap in opened(tree)[3] for part in gap.parts] == [("package-1", "cpu")]


@pytest.mark.parametrize("name", ["intel-two-sockets", "amd-two-sockets", "intel-multi-die"])
def test_two_counters_are_two_series_by_perf_with_powercaps_names(plant, opened, online_cpus, name):
    if len(online_cpus) < 2:
        pytest.skip("one CPU online: two sockets need two")
    tree = plant(name)
    expected = opened(tree)[1]
    tree.pmu()
    assert opened(tree) == ({"rapl-perf"}, expected, {"powercap"}, ())


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
