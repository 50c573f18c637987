"""Joules net of idle, by what the CPU worked for, and while the step was stalled; unknown where nothing tells."""

import numpy as np
import pytest

from energymon.reading import Reading
from harness.results.attributed import PARTS
from harness.results.make_rows import make_epoch_rows
from tests.harness.records import START, S, change, with_events

EMULATED = {"label": "emulated: A100", "emulated": True, "kind": "emulated", "busy_w": 400.0, "idle_w": 50.0}
GPU = {"label": "cuda: a board", "emulated": False, "kind": "cuda"}


def baseline(watts=40.0, domain="cpu", device="package-0", source="rapl-powercap", node="host"):
    known = {"node": node, "device": device, "domain": domain, "source": source, "error_w": 0.5}
    return known | {"start_ns": START - 20 * S, "end_ns": START - 10 * S, "watts": watts}


def with_baseline(data, *, idle=None, counters=None, **cell):
    """Return a cell with an idle baseline, and with counters of the end of its epoch, each 0 at its start."""
    data = with_events(data, dict.fromkeys(counters or (), 0.0), counters)
    return change(data, cell={"energy": {"idle": [baseline()] if idle is None else idle}, **cell})


def parts_of(row):
    return {name: getattr(row, f"{name}_j") for name in PARTS}


def test_without_a_baseline_of_every_part_net_joules_and_their_parts_are_unknown(stored):
    idle = [baseline(device="package-1")]
    (row,) = make_epoch_rows(with_baseline(stored(), idle=idle, counters={"cell_cpu_s": 1.0}))
    assert row.net_j is row.cpu_net_j is row.idle_j is None
    assert set(parts_of(row).values()) == {None}


def test_where_no_baseline_was_taken_all_cpu_joules_go_by_cpu_time(stored):
    (row,) = make_epoch_rows(with_baseline(stored(), idle=[], counters={"cell_cpu_s": 3.0, "cpu_steal_s": 0.0}))
    assert row.net_j is row.cpu_net_j is row.idle_j is None
    assert (row.loader_j, row.other_j) == (pytest.approx(300.0), pytest.approx(100.0))
    assert row.loader_j + row.other_j == pytest.approx(row.cpu_j)


def test_the_parts_add_up_to_the_cpu_s_net_joules_and_these_with_idle_ones_to_all(stored, readings):
    board = readings("nvml-counter", "gpu", 60.0, "gpu-0")
    idle = [baseline(), baseline(20.0, "gpu", "gpu-0", "nvml-counter")]
    data = with_baseline(stored(readings=readings() + board), idle=idle, counters={"cell_cpu_s": 2.0})
    (row,) = make_epoch_rows(data)
    assert (row.cpu_net_j, row.idle_j) == (pytest.approx(240.0), pytest.approx(160.0))
    assert row.cpu_net_j + row.idle_j == pytest.approx(row.cpu_j)
    assert sum(part for part in parts_of(row).values() if part) == pytest.approx(row.cpu_net_j)


def test_joules_below_those_of_a_baseline_that_was_not_idle_have_no_parts(stored):
    (row,) = make_epoch_rows(with_baseline(stored(), idle=[baseline(110.0)], counters={"cell_cpu_s": 1.0}))
    assert row.cpu_net_j == pytest.approx(-40.0)
    assert set(parts_of(row).values()) == {None}


def test_an_emulated_board_idles_at_its_published_power(stored):
    (row,) = make_epoch_rows(with_baseline(stored(), accelerator=EMULATED))
    assert row.net_j == pytest.approx(240.0 + (400.0 - 50.0) * 2.0)


def test_cpu_joules_net_of_idle_go_by_cpu_time_and_add_up(stored):
    used = {"cell_cpu_s": 2.0, "daemon_cpu_s": 0.5, "mount_cpu_s": 0.25, "link_cpu_s": 0.75, "monitor_cpu_s": 0.1}
    (row,) = make_epoch_rows(with_baseline(stored(), counters={**used, "cpu_idle_s": 3.9, "cpu_steal_s": 0.1}))
    found = parts_of(row)
    assert found == {
        "loader": pytest.approx(120.0),
        "daemon": pytest.approx(30.0),
        "mount": pytest.approx(15.0),
        "link": pytest.approx(45.0),
        "monitor": pytest.approx(6.0),
        "other": pytest.approx(24.0),
    }
    assert sum(found.values()) == pytest.approx(240.0)


def test_processes_that_were_read_later_than_the_host_get_no_more_than_there_is(stored):
    used = {"cell_cpu_s": 4.5, "link_cpu_s": 0.5, "cpu_steal_s": 0.0}
    (row,) = make_epoch_rows(with_baseline(stored(), counters=used))
    assert (row.loader_j, row.link_j, row.other_j) == (pytest.approx(216.0), pytest.approx(24.0), pytest.approx(0.0))


def test_the_whole_is_the_time_in_which_processors_were_not_idle_and_not_what_ticks_saw_busy(stored):
    timed = {"cell_cpu_s": 4.5, "cpu_busy_s": 4.0, "cpu_at_s": 4.0, "cpu_idle_s": 2.9, "cpu_steal_s": 0.1, "cpus": 2}
    (row,) = make_epoch_rows(with_baseline(stored(), counters=timed))
    assert (row.loader_j, row.other_j) == (pytest.approx(216.0), pytest.approx(24.0))


def test_several_ranks_on_one_host_are_one_loader(stored):
    data = with_baseline(stored(), counters={"cell_cpu_s": 1.0, "cpu_steal_s": 0.0})
    _, start, end, *_ = data.events
    theirs = [{**event, "event": f"rank.{event['event']}", "rank": 1} for event in (start, {**end, "cell_cpu_s": 2.0})]
    (row,) = make_epoch_rows(with_events(data, more=theirs))
    assert row.loader_j == pytest.approx(180.0)


@pytest.fixture
def on_two_hosts(stored, readings):
    """Return the maker of a cell on the hosts `host` and `far`, each with 100 W, with CPU seconds by host and part."""

    def make(cpu_s, idle=True):
        clock = {"source": "chrony", "offset_ms": 0.0, "error_ms": 0.1}
        series = [{"device": "package-0", "domain": "cpu", "source": "rapl-powercap"}]
        other = {"host": "far", "roles": ["storage"], "interval_ms": 100.0, "offset_ns": 0, "series": series}
        other |= {"clock_before": clock, "clock_after": clock, "idle": [baseline(90.0, node="far")] if idle else []}
        far = [Reading(*(r.tick_ns, r.t_ns, "far", r.device, r.domain, r.source, r.joules)) for r in readings()]
        counted = {host: {1: parts} for host, parts in cpu_s.items()}
        (row,) = make_epoch_rows(with_baseline(stored(readings=readings() + far), hosts=[other], host_cpu_s=counted))
        return row

    return make


def test_on_several_hosts_net_joules_go_by_the_cpu_time_of_each(on_two_hosts):
    row = on_two_hosts({"host": {"busy": 4.0, "loader": 2.0, "mount": 1.0}, "far": {"busy": 2.0, "mount": 0.5}})
    assert row.net_j == pytest.approx(240.0 + 40.0)
    assert (row.loader_j, row.mount_j) == (pytest.approx(120.0), pytest.approx(60.0 + 10.0))
    assert row.daemon_j is row.link_j is row.monitor_j is None
    assert row.other_j == pytest.approx(60.0 + 30.0)


def test_the_parts_are_unknown_where_a_host_counted_no_cpu_time_or_has_no_baseline(on_two_hosts):
    counted = {"host": {"busy": 4.0, "loader": 2.0}}
    assert set(parts_of(on_two_hosts(counted)).values()) == {None}
    without = on_two_hosts({**counted, "far": {"busy": 2.0}}, idle=False)
    assert without.net_j is None
    assert set(parts_of(without).values()) == {None}


def test_an_emulated_board_idles_while_the_step_is_stalled(stored):
    (row,) = make_epoch_rows(change(stored(), cell={"accelerator": EMULATED}))
    assert row.stalled_j == pytest.approx(50.0 * 2.0)
    (row,) = make_epoch_rows(change(stored(), cell={"accelerator": {**EMULATED, "idle_w": None, "busy_w": None}}))
    assert row.stalled_j is None


def test_what_a_board_used_while_the_step_was_stalled_is_measured(stored, readings):
    """It draws 300 W in steps and 50 W in waits, of 1, 0.5 and 0.5 s before steps of 0.5, 0.75 and 0.75 s."""
    edges_s = np.cumsum([0, 1.0, 0.5, 0.5, 0.75, 0.5, 0.75])
    joules = np.cumsum([0, 50, 150, 25, 225, 25, 225])
    times_s = np.arange(-5, 50) / 10
    board = [
        Reading(START + int(at * S), START + int(at * S), "host", "gpu-0", "gpu", "nvml-counter", float(used))
        for at, used in zip(times_s, np.interp(times_s, edges_s, joules), strict=True)
    ]
    data = change(stored(readings=readings() + board), cell={"accelerator": GPU})
    (row,) = make_epoch_rows(data)
    assert row.stalled_j == pytest.approx(100.0, rel=0.2)
    (row,) = make_epoch_rows(change(data, readings=readings()))
    assert row.stalled_j is None


@pytest.mark.parametrize("kind", ["cpu", "none"])
def test_without_an_accelerator_nothing_is_stalled(stored, readings, kind):
    board = readings("nvml-counter", "gpu", 60.0, "gpu-0")
    data = stored(readings=readings() + board)
    (row,) = make_epoch_rows(change(data, cell={"accelerator": {"label": kind, "kind": kind}}))
    assert row.stalled_j is None


def test_a_host_that_was_busy_has_no_idle_baseline(stored):
    data = with_baseline(stored())
    busy = change(data, cell={"energy": {"idle_cpu_util": 0.3}})
    (row,) = make_epoch_rows(busy, 0.1)
    assert row.net_j is row.cpu_net_j is row.idle_j is None
    assert set(parts_of(row).values()) == {None}
    assert make_epoch_rows(busy, 0.3)[0].net_j == pytest.approx(240.0)
