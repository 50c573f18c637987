"""A part of the host that is found and cannot be read when the agent starts: its domain is unknown everywhere."""

import time

import pytest

from energymon import SqliteStore, Window, WindowError, query, stored_tuples
from energymon.agent.window import Agent
from energymon.sensors.discover import SensorConfig, discover
from energymon.sensors.powercap import open_powercap

INTERVAL_NS = 100_000_000


@pytest.fixture
def hide():
    """Make a counter one that is there by name alone."""

    def hide_counter(zone):
        energy = zone.path / "energy_uj"
        energy.rename(energy.with_name("gone"))

    return hide_counter


def measure(store, *options):
    """Run an agent for a window, and return that."""
    with Agent(store, node="n", interval_ms=20, options=options) as agent:
        with Window("epoch", agent=agent) as window:
            time.sleep(0.3)
        assert window.energy
        return window


@pytest.mark.process
def test_a_socket_that_cannot_be_read_leaves_cpu_and_total_unknown(rapl, hide, tmp_path):
    hide(rapl.packages[1])
    store = tmp_path / "energy.sqlite"
    with rapl.running():
        window = measure(store, "--sysfs", str(rapl.root), "--nvml", str(tmp_path / "none.so"))
    assert window.by_domain["cpu"] is None
    assert window.by_domain["dram"] > 0
    with pytest.raises(WindowError, match=r"(?s)package-1 cpu.*part-unreadable"):
        assert window.joules
    with SqliteStore.open(store) as opened:
        (session,) = opened.sessions()
        assert [(u["device"], u["domain"]) for u in session.description["unreadable"]] == [("package-1", "cpu")]
        (found,) = query(opened, window.start_ns, window.end_ns)
        tuples = list(stored_tuples(opened, window.start_ns, window.end_ns))
    assert {c.name: (c.joules, c.lost) for c in found.components if c.joules is None} == {
        "cpu": (None, ("package-1",)),
        "total": (None, ("package-1 cpu",)),
    }
    assert tuples
    assert {t.cpu_energy for t in tuples} == {None}
    assert all(t.memory_energy is not None for t in tuples)


@pytest.mark.process
def test_a_counter_that_may_wrap_within_a_tick_gives_no_figure_and_every_window_says_so(plant, tmp_path):
    tree = plant("amd-one-socket")
    zone = tree.packages[0]
    # At the 1000 W that are possible it wraps in 10 ms.
    zone.range_uj = 10_000_000
    (zone.path / "max_energy_range_uj").write_text("10000000\n")
    why = r"(?s)may wrap in 10 ms, between two ticks: take --interval-ms 5 or less"
    with tree.running(), pytest.raises(WindowError, match=why):
        measure(tmp_path / "e.sqlite", "--sysfs", str(tree.root), "--nvml", str(tmp_path / "none.so"))


def unreadable(found):
    parts = sorted(found.unreadable)
    found.close()
    return parts


@pytest.mark.parametrize(("control", "parts"), [({"lost": [1]}, [("gpu-1", "gpu")]), ({"no_driver": True}, [])])
def test_boards_without_a_figure_are_parts_and_a_host_without_the_driver_has_none(
    boards, nvml_library, tmp_path, control, parts
):
    boards(2, **control)
    assert unreadable(discover(SensorConfig(sysfs=tmp_path, nvml=nvml_library), INTERVAL_NS)) == parts


def test_an_estimate_stands_for_every_socket_and_for_no_dram(rapl, hide, tmp_path):
    for zone in (*rapl.packages, *rapl.drams):
        hide(zone)
    config = SensorConfig(sysfs=rapl.root, nvml=tmp_path / "none.so", estimate=True)
    assert unreadable(discover(config, INTERVAL_NS)) == [("package-0", "dram"), ("package-1", "dram")]


def test_a_package_that_stands_still_is_a_part_and_dram_that_no_socket_counts_is_none(rapl):
    for zone in (rapl.packages[1], *rapl.drams):
        zone.broken = True
    with rapl.running():
        found = open_powercap(rapl.root)
    assert [part for gap in found.missing for part in gap.parts] == [("package-1", "cpu")]
    found.sensors[0].close()
