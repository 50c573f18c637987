"""Rows come from what a cell stored; unknown stays unknown, and an estimate is named as one."""

from dataclasses import replace

import numpy as np
import pytest

from harness.results.cell_folder import compute_utilisation
from harness.results.make_rows import make_epoch_rows
from tests.harness.conftest import batches
from tests.harness.records import change

EMULATED = {"label": "emulated: A100", "emulated": True, "busy_w": 400.0, "idle_w": 50.0}


def test_a_row_holds_what_was_stored(stored):
    regime = {"name": "wan", "rtt_ms": 30.0, "rate_gbit": 1.0, "jitter_ms": 2.0, "loss_pct": 0.1}
    (row,) = make_epoch_rows(change(stored(), cell={"regime": regime}))
    assert (row.rtt_ms, row.jitter_ms, row.loss_pct) == (30.0, 2.0, 0.1)
    assert row.duration_s == 4.0
    assert (row.samples, row.bytes) == (6, 3000)
    assert row.samples_per_s == 1.5
    assert row.stall_s == 2.0
    assert row.cpu_util == 0.5
    assert row.cpu_j == pytest.approx(400.0)
    assert row.total_j == pytest.approx(400.0)
    assert row.energy_source == "cpu=rapl-powercap"
    assert (row.j_per_gb, row.j_per_sample) == (pytest.approx(400.0 / 3e-6), pytest.approx(400.0 / 6))
    assert row.energy_error_j > 0
    assert row.start_utc == "2023-11-14T22:13:20.000000+00:00"


def accurate(device, domain="gpu", source="nvml-counter", share=0.05, unseen_w=10.0):
    accuracy = {"share": share, "unseen_w": unseen_w, "edge_j": 2.0, "origin": "a study"}
    return {"device": device, "domain": domain, "source": source, "accuracy": accuracy}


def of_boards(stored, readings, *series):
    read = [one for of in series for one in readings(of["source"], of["domain"], device=of["device"])]
    return make_epoch_rows(change(stored(readings=read), cell={"energy": {"series": series}}))[0]


def test_a_row_holds_what_the_sensors_themselves_do_not_see(stored, readings):
    alone = of_boards(stored, readings, accurate("gpu-0"))
    assert alone.energy_accuracy_j == pytest.approx(0.05 * 400 + 10 * 4 + 2)
    # The share of the joules is the same in every row of the board.
    assert alone.energy_gain_j == pytest.approx(0.05 * 400)
    two = of_boards(stored, readings, accurate("gpu-0"), accurate("gpu-1"))
    assert two.energy_accuracy_j == pytest.approx(2 * alone.energy_accuracy_j)
    assert two.energy_gain_j == 0.0, "each board has an error of its own"
    unknown = of_boards(stored, readings, accurate("gpu-0"), accurate("package-0", "cpu", "rapl-perf", share=None))
    assert unknown.energy_accuracy_j is unknown.energy_gain_j is None
    assert unknown.energy_error_j > 0


def test_without_a_sensor_joules_are_unknown_and_not_zero(stored, readings):
    (row,) = make_epoch_rows(stored(readings=readings()[:20]))
    assert row.cpu_j is None  # readings that do not cover the epoch
    (row,) = make_epoch_rows(change(stored(readings=[]), cell={"energy": {"series": []}}))
    assert row.cpu_j is row.dram_j is row.gpu_j is row.total_j is row.energy_error_j is None
    assert row.j_per_gb is row.j_per_sample is None
    assert row.energy_source == ""


def test_an_epoch_that_did_not_end_has_no_row(stored):
    assert make_epoch_rows(stored(events=stored().events[:2])) == []


def test_accelerator_utilisation_leaves_the_first_step_out():
    waits, steps = np.array([10.0, 0.5, 0.5]), np.array([5.0, 1.5, 1.5])
    assert compute_utilisation(waits, steps) == 0.75
    assert compute_utilisation(waits[:1], steps[:1]) is None


def test_an_emulated_accelerators_joules_are_its_published_power_and_an_estimate(stored):
    (row,) = make_epoch_rows(change(stored(), cell={"accelerator": EMULATED}))
    assert row.gpu_j == pytest.approx(400.0 * 2.0 + 50.0 * 2.0)
    assert row.energy_source == "cpu=rapl-powercap;gpu=estimate"
    assert row.accelerator == EMULATED["label"]


def test_bounds_are_of_the_joules_that_are_measured_beside_an_emulated_board(stored, readings):
    series = [accurate("package-0", "cpu", "rapl-powercap")]
    rows = [
        make_epoch_rows(change(data, cell={"accelerator": accelerator, "energy": {"series": series}}))[0]
        for data in (stored(), at_the_wall(stored(), readings))
        for accelerator in ({"label": "cpu"}, EMULATED)
    ]
    for row in rows:
        bounds = (row.drawn_j, row.energy_error_j, row.energy_accuracy_j, row.energy_gain_j)
        assert bounds == pytest.approx((400.0, rows[0].energy_error_j, 62.0, 20.0))
    assert rows[1].total_j > rows[1].drawn_j
    assert rows[1].find_joule_error(400.0, cancels=True) == pytest.approx((rows[0].energy_error_j + 42) / 400)
    (unmeasured,) = make_epoch_rows(
        change(stored(readings=[]), cell={"accelerator": EMULATED, "energy": {"series": []}})
    )
    assert unmeasured.total_j and unmeasured.drawn_j is unmeasured.energy_error_j is None


def test_a_row_of_a_model_check_says_so(stored):
    (row,) = make_epoch_rows(change(stored(), cell={"accelerator": EMULATED, "model_check": "Table 2"}))
    assert row.accelerator == f"{EMULATED['label']}, model check"


def test_an_emulated_step_computes_for_its_nominal_time_however_late_its_sleep_ends(stored):
    late = replace(batches(), nominal_s=np.full(3, 0.5))
    data = change(stored(), cell={"accelerator": EMULATED | {"seconds_per_sample": 0.25}})
    (row,) = make_epoch_rows(replace(data, batches={1: late}))
    assert row.gpu_j == pytest.approx(400.0 * 1.5 + 50.0 * 2.5)
    assert row.au == pytest.approx(1.0 / 2.5)


SERIES = [{"device": f"package-{n}", "domain": "cpu", "source": "rapl-powercap"} for n in range(2)]


@pytest.mark.parametrize(
    "energy",
    [{"series": SERIES}, {"unreadable": [{"device": "package-1", "domain": "cpu", "reason": "denied"}]}],
    ids=["lost", "never read"],
)
def test_a_part_without_readings_leaves_its_domain_and_the_total_unknown(energy, stored):
    (row,) = make_epoch_rows(change(stored(), cell={"energy": energy}))
    assert row.cpu_j is row.total_j is row.energy_error_j is None


def test_an_idle_board_of_this_machine_does_not_pass_for_the_emulated_one(stored, readings):
    idle = readings("nvml-counter", "gpu", 60.0, "gpu-0")
    (row,) = make_epoch_rows(change(stored(), cell={"accelerator": EMULATED}, readings=readings() + idle))
    assert row.gpu_j == pytest.approx(900.0)
    assert "gpu=estimate" in row.energy_source
    assert "nvml" not in row.energy_source


WALL = {"device": "plug", "domain": "wall", "source": "tasmota-energy"}


def at_the_wall(data, readings, watts=250.0):
    """Return the data of a cell whose host has a meter at its supply beside its processor's counter."""
    series = [{"device": "package-0", "domain": "cpu", "source": "rapl-powercap"}, WALL]
    rows = [*data.readings, *readings(**WALL, watts=watts)]
    return change(data, cell={"energy": {"series": series}}, readings=rows)


def test_joules_at_the_wall_have_a_column_of_their_own_and_are_in_no_sum(stored, readings):
    (row,) = make_epoch_rows(at_the_wall(stored(), readings))
    assert (row.wall_j, row.total_j) == (pytest.approx(1000.0), pytest.approx(400.0))
    assert 0 < row.wall_error_j < 1500
    assert row.j_per_gb == pytest.approx(400.0 / 3e-6)
    assert row.energy_source == "cpu=rapl-powercap;wall=tasmota-energy"
    assert (row.disagreements, row.estimated) == ("", frozenset())
    (row,) = make_epoch_rows(stored())
    assert row.wall_j is row.wall_error_j is None


def test_an_emulated_board_is_not_at_the_wall_and_leaves_it_as_it_is(stored, readings):
    (row,) = make_epoch_rows(change(at_the_wall(stored(), readings), cell={"accelerator": EMULATED}))
    assert (row.wall_j, row.gpu_j) == (pytest.approx(1000.0), pytest.approx(900.0))
    assert row.disagreements == "", "published power is no measurement, and contradicts none"
