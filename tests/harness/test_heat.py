"""Temperatures, clocks and what holds them back: read from a fake NVML and a fake sysfs, judged, and waited for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cell.settle import settle
from harness.config.specs import SettleSpec
from harness.results.checks import judge
from harness.results.edges import describe_held
from harness.results.make_rows import make_epoch_rows
from harness.results.metrics import make_epoch_metrics
from harness.system.heat import CAPPED, SLOWED, DeviceState, Heat
from harness.workloads.emulated import EmulatedStep, NoStep
from tests.energymon.nvml import fake
from tests.harness.records import change, with_events
from tests.harness.test_checks import judged

REPO = Path(__file__).parents[2]
READ = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from harness.system.heat import Heat
with Heat(Path(sys.argv[1]), Path(sys.argv[2])) as heat:
    print(json.dumps([asdict(state) for state in heat.read()]))
"""
CAPPED_BIT, HOT_BIT = 0x4, 0x40


def write_sysfs(root, *, packages=1, cpus=2, temps=(61, 58), throttled=(3, 12), zones=()):
    """Write the files of processors: counts and times, ms, of each processor and package; temperatures in °C."""
    files = {}
    for cpu in range(packages * cpus):
        own = f"devices/system/cpu/cpu{cpu}"
        files[f"{own}/topology/physical_package_id"] = cpu // cpus
        files[f"{own}/cpufreq/scaling_cur_freq"] = 2_000_000 + 500_000 * (cpu % cpus)
        if throttled:
            for part in ("core", "package"):
                files[f"{own}/thermal_throttle/{part}_throttle_count"] = throttled[0]
                files[f"{own}/thermal_throttle/{part}_throttle_total_time_ms"] = throttled[1]
    for package in range(packages if temps else 0):
        chip = f"class/hwmon/hwmon{package + 3}"
        files |= {f"{chip}/name": "coretemp", f"{chip}/temp1_label": f"Package id {package}"}
        files |= {f"{chip}/temp{n + 1}_input": 1000 * (temp + package) for n, temp in enumerate(temps)}
    files |= {"class/hwmon/hwmon0/name": "nvme", "class/hwmon/hwmon0/temp1_input": 99_000}
    for number, (kind, temp) in enumerate(zones):
        files |= {f"class/thermal/thermal_zone{number}/{name}": of for name, of in (("type", kind), ("temp", temp))}
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_packages_have_their_highest_temperature_their_mean_clock_and_how_often_heat_held_them_back(tmp_path):
    with Heat(tmp_path / "none.so", write_sysfs(tmp_path, packages=2)) as heat:
        assert heat.read() == [
            DeviceState(
                device=f"package-{number}",
                temp_c=61 + number,
                clock_mhz=2250,
                held_s={"thermal": 0.012},
                held_times={"thermal": 9},
            )
            for number in range(2)
        ]


def test_thermal_zones_of_processors_serve_where_no_chip_does(tmp_path):
    zones = [("acpitz", 20_000), ("x86_pkg_temp", 47_000)]
    root = write_sysfs(tmp_path, temps=(), throttled=(), zones=zones)
    (state,) = Heat(tmp_path / "none.so", root).read()
    assert (state.temp_c, state.held_times) == (47, {})


def test_a_host_without_sensors_has_no_device(tmp_path):
    assert Heat(tmp_path / "none.so", tmp_path).read() == []


@pytest.mark.process
@pytest.mark.skipif(fake.compiler() is None, reason="the fake NVML is C: no cc on this host")
def test_boards_tell_temperature_clocks_limit_and_what_holds_them_back(tmp_path):
    control = fake.Boards(tmp_path / "boards")
    control(2, temp_c={0: 71}, limit_w={0: 650.5}, reasons={0: CAPPED_BIT | HOT_BIT}, capped_s={0: 1.5})
    argv = [sys.executable, "-c", READ, str(fake.build(tmp_path)), str(tmp_path)]
    environment = {**os.environ, "FAKE_NVML": str(control.control)}
    said = subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, text=True, check=True).stdout
    known, silent = (DeviceState(**one) for one in json.loads(said))
    assert known == DeviceState(
        device="gpu-0",
        uuid="GPU-00000000",
        temp_c=71,
        clock_mhz=1980,
        memory_clock_mhz=3201,
        limit_w=650,
        reasons=["sw_power_cap", "hw_thermal_slowdown"],
        held_s={"sw_power_cap": 1.5},
    )
    assert silent == DeviceState(device="gpu-1", uuid="GPU-00000001", reasons=[])


def board(device="gpu-0", temp_c=60.0, **known):
    uuid = f"GPU-{device[-1]}" if device.startswith("gpu") else ""
    return DeviceState(device=device, uuid=uuid, temp_c=temp_c, limit_w=700.0, **known)


def with_devices(data, start, end, boards=("GPU-0",)):
    """Return the data of a cell with devices at its edges, of which it trains on `boards`."""
    each = ({"devices": [asdict(state) for state in edge]} for edge in (start, end))
    return with_events(change(data, cell={"accelerator": {"label": "a step", "boards": boards}}), *each)


@pytest.mark.parametrize(
    ("start", "end", "limits", "verdict", "told"),
    [
        ({}, {}, {}, "pass", "nothing did; at most 60 °C"),
        # An H200 under full load always keeps to its 700 W.
        (
            {"held_s": {"sw_power_cap": 7.0}},
            {"held_s": {"sw_power_cap": 10.0}, "reasons": ["sw_power_cap"]},
            {},
            "warn",
            "gpu-0 sw_power_cap for 75.0 % of the epoch, at its end; at most 60 °C",
        ),
        ({"held_s": {"sw_power_cap": 0.0}}, {"held_s": {"sw_power_cap": 4.1}}, {}, "warn", "for 100.0 % of the epoch"),
        ({"held_s": {"sw_power_cap": 0.0}}, {"held_s": {"sw_power_cap": 3.0}}, {"capped_pct": 50.0}, "fail", "75.0 %"),
        ({}, {"reasons": ["sw_power_cap"]}, {"capped_pct": 0.0}, "fail", "gpu-0 sw_power_cap at its end"),
        # A change of the performance state shows it for a moment.
        ({"reasons": ["hw_slowdown"]}, {}, {}, "warn", "gpu-0 hw_slowdown at its start"),
        ({"reasons": ["hw_slowdown"]}, {"reasons": ["hw_slowdown"]}, {}, "fail", "hw_slowdown at its start and end"),
        ({}, {"reasons": ["hw_thermal_slowdown"]}, {}, "fail", "gpu-0 hw_thermal_slowdown at its end"),
        ({}, {"reasons": ["hw_power_brake_slowdown"]}, {"slowed_pct": 5.0}, "warn", "brake_slowdown at its end"),
        *(
            ({"reasons": [reason]}, {"reasons": [reason]}, {"slowed_pct": allowed}, verdict, "at its start and end")
            for reason in ("hw_slowdown", "hw_power_brake_slowdown")
            for allowed, verdict in ((5.0, "fail"), (100.0, "warn"))
        ),
        (
            {"held_s": {"thermal": 1.0}},
            {"held_s": {"thermal": 1.2}},
            {},
            "fail",
            "gpu-0 thermal for 5.0 % of the epoch",
        ),
        ({"held_s": {"thermal": 1.0}}, {"held_s": {"thermal": 1.2}}, {"slowed_pct": 6.0}, "warn", "thermal for 5.0 %"),
        ({"held_s": {"thermal": 9.0}}, {"held_s": {"thermal": 9.0}}, {}, "pass", "nothing did"),
        ({"reasons": ["gpu_idle"]}, {"reasons": ["applications_clocks_setting"]}, {}, "pass", "nothing did"),
    ],
)
def test_heat_refuses_a_row_and_a_power_limit_warns_unless_the_config_says_otherwise(
    start, end, limits, verdict, told, stored
):
    data = with_devices(stored(), [board(**start)], [board(**end)])
    valid, rules = judged(data, **limits)
    assert rules["slowdown"] == verdict
    assert (valid == "valid") == (verdict != "fail")
    assert told in actual_of(data, **limits)


def actual_of(data, **limits):
    from harness.config.specs import Tolerances

    _, checks = judge([data], make_epoch_rows(data), Tolerances(**limits))
    return next(check.actual for check in checks if check.rule == "slowdown")


def test_a_processor_that_heat_held_back_is_named(stored):
    start, end = ({"held_s": {"thermal": of / 10}, "held_times": {"thermal": of}} for of in (1, 3))
    data = with_devices(stored(), [board("package-1", **start)], [board("package-1", **end)])
    assert judged(data)[1]["slowdown"] == "fail"
    assert actual_of(data).startswith("package-1 thermal for 5.0 % of the epoch, 2 times; ")


def test_boards_on_which_the_cell_does_not_train_refuse_no_row(stored):
    devices = [board("gpu-0"), board("gpu-1", reasons=["hw_slowdown"])]
    found = {
        boards: judged(with_devices(stored(), devices, devices, boards))[1]["slowdown"]
        for boards in (("GPU-0",), ("GPU-0", "GPU-1"), ())
    }
    assert list(found.values()) == ["pass", "fail", "warn"]
    told = actual_of(with_devices(stored(), devices, devices, ()))
    assert told == "gpu-1 hw_slowdown at its start and end (not the cell's board); at most 60 °C"


def test_a_processor_of_which_nothing_counts_what_held_it_back_is_not_judged(stored):
    hot, counted = board("package-0", temp_c=99.0), board("package-0", temp_c=99.0, held_times={"thermal": 0})
    for devices, boards, verdict, told in (
        ([hot], (), "not applicable", "no device here counts it; at most 99 °C"),
        ([hot, board()], (), "not applicable", "no device here counts it; at most 99 °C"),
        ([hot, board()], ("GPU-0",), "pass", "nothing did; at most 99 °C"),
        ([counted], (), "pass", "nothing did; at most 99 °C"),
    ):
        data = with_devices(stored(), devices, devices, boards)
        assert (judged(data)[1]["slowdown"], actual_of(data)) == (verdict, told)


def test_every_host_is_judged_and_named(stored, quiet):
    hot = {"devices": [asdict(board(reasons=["sw_thermal_slowdown"]))]}
    fine = {"devices": [asdict(board())]}
    quotas = ({"throttled": 1, "throttled_s": 0.5}, {"throttled": 4, "throttled_s": 0.9})
    known = quiet() | {"memory_wait_s": 0.0, "disk_wait_s": 0.0, "swapped_in_bytes": 0}
    there = [{**known, **edge, **quota} for edge, quota in zip((fine, hot), quotas, strict=True)]
    data = with_devices(change(stored(), cell={"host_states": {"storage1": {1: there}}}), [board()], [board()])
    valid, rules = judged(data)
    assert {rules[rule] for rule in ("slowdown", "throttled")} == {"fail"}
    assert rules["pressure_memory"] == "pass"
    assert "throttled (0.40 s in 4.00 s, 3 times on storage1, expected" in valid
    assert "slowdown (gpu-0 sw_thermal_slowdown at its end; at most 60 °C on storage1, expected" in valid


def test_the_devices_of_another_host_are_those_that_its_own_rank_saw(stored, quiet):
    idle, slowed = ({"devices": [asdict(board(reasons=of))]} for of in ([], ["hw_slowdown"]))
    there = {**quiet(), "throttled": None, "throttled_s": None, "memory_wait_s": None, "disk_wait_s": None, **idle}
    ranks = [{"rank": rank, "host": host, "address": "::1"} for rank, host in enumerate(("lead", "far"))]
    own = {"accelerator": {"label": "cuda", "boards": ["GPU-0"]}}
    data = change(stored(), cell={"ranks": ranks, "host_states": {"far": {1: [there, there]}}, **own})
    assert judged(data)[1]["slowdown"] == "pass"
    more = [{**one, "event": f"rank.{one['event']}", "rank": 1, **slowed} for one in data.events[1:3]]
    assert actual_of(with_events(data, more=more)) == "gpu-0 hw_slowdown at its start and end; at most 60 °C on far"


def test_a_change_of_speed_of_another_host_warns(stored):
    clock = {"source": "chrony", "offset_ms": 0.0, "error_ms": 0.01}
    host = {"host": "storage1", "roles": ["storage"], "interval_ms": 100.0, "offset_ns": 0}
    host |= {"clock_before": clock, "clock_after": clock}
    fast, slow = ({"best_s": best_s, "median_s": best_s} for best_s in (6e-4, 7e-4))
    host["spin"] = {"first": fast, "before": fast, "after": slow}
    assert judged(change(stored(), cell={"hosts": [host]}))[1]["frequency"] == "warn"


def test_a_host_of_which_nothing_is_known_is_not_judged(stored):
    assert judged(stored())[1]["slowdown"] == "not applicable"


def test_the_devices_at_an_epochs_end_are_columns(stored):
    start = [board(held_s={"sw_power_cap": 1.0}), board("package-0", temp_c=50.0)]
    end = [board(temp_c=72.0, clock_mhz=1755.0, memory_clock_mhz=3201.0, held_s={"sw_power_cap": 3.0})]
    end.append(board("package-0", temp_c=66.0, clock_mhz=2400.0))
    (found,) = make_epoch_metrics(with_devices(stored(), start, end))
    assert (found.gpu_temp_c, found.gpu_clock_mhz, found.gpu_memory_clock_mhz) == (72.0, 1755.0, 3201.0)
    assert (found.gpu_power_limit_w, found.gpu_capped) == (700.0, 0.5)
    assert (found.cpu_temp_c, found.cpu_clock_mhz) == (66.0, 2400.0)
    (unknown,) = make_epoch_metrics(stored())
    assert unknown.gpu_temp_c is unknown.gpu_capped is unknown.cpu_temp_c is None


def test_reasons_are_held_apart():
    state = board(reasons=["sw_power_cap", "hw_slowdown"])
    assert describe_held(state, state, CAPPED, 4.0) == {"gpu-0 sw_power_cap at its start and end": 1.0}
    assert describe_held(state, state, SLOWED, 4.0) == {"gpu-0 hw_slowdown at its start and end": 1.0}
    assert describe_held(state, board(), CAPPED | SLOWED, 4.0) == {
        "gpu-0 hw_slowdown at its start": 0.0,
        "gpu-0 sw_power_cap at its start": None,
    }


def train():
    """Make a step on a processor that is like those of real models in what the wait asks of it."""
    return SimpleNamespace(kind="cpu", warm_up=lambda: time.sleep(0.01))


@pytest.mark.parametrize(
    ("degrees_a_look", "spec", "is_steady"),
    [(0.1, SettleSpec(max_s=9, over_s=1), True), (5.0, SettleSpec(max_s=1.5, over_s=1), False)],
)
def test_a_run_waits_until_temperatures_are_steady_and_no_longer_than_it_may(degrees_a_look, spec, is_steady):
    looks, lines = iter(range(1000)), []
    found = settle(train, lambda: [board(temp_c=50 + degrees_a_look * next(looks))], spec, lines.append)
    assert re.fullmatch(rf"temperatures {'' if is_steady else 'not '}steady after \d s: gpu-0 50 to \d\d °C", found)
    assert lines[0].startswith("until gpu-0 5") and lines[0].endswith(" °C are steady")
    assert len(lines) >= (2 if is_steady else 3), "it looks twice a second"


def test_nothing_is_waited_for_where_no_device_says_its_temperature_or_the_config_has_no_time_for_it():
    def make():
        raise AssertionError("no step is needed")

    nothing = DeviceState(device="package-0", clock_mhz=2000.0)
    assert settle(make, lambda: [nothing], SettleSpec(max_s=60), print) == ""
    assert settle(make, lambda: [board()], SettleSpec(), print) == ""


def test_nothing_is_waited_for_where_no_real_step_trains():
    lines = []
    for make in (NoStep, lambda: EmulatedStep.assumed(0.001, 1.0)):
        assert settle(make, lambda: [board()], SettleSpec(max_s=60), lines.append) == ""
    assert lines == []


def test_temperatures_that_do_not_come_again_are_not_steady():
    looks = cycle([[board("gpu-0")], [board("gpu-1")]])
    found = settle(train, lambda: next(looks), SettleSpec(max_s=1.1, over_s=1), print)
    assert found.startswith("temperatures not steady after 1 s")


def test_a_wait_that_is_too_short_to_see_steady_temperatures_is_refused():
    with pytest.raises(ValueError, match=r"max_s=5: too short .* expected over_s=10 or more, or 0 for no wait"):
        SettleSpec(max_s=5)
    assert SettleSpec(max_s=0).max_s == 0
