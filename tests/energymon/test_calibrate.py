"""What calibration makes of sensors that behave as published, of a recorded board, and of a counter under a load."""

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import energymon
from energymon import Reading, SqliteStore
from energymon.analysis import accuracy, calibration
from energymon.analysis.accuracy import (
    Accuracy,
    SensorCalibration,
    accuracy_of,
    calibration_of,
    key_of,
    load_calibrations,
    save_calibrations,
    with_accuracy,
)
from energymon.analysis.attribution import channels_of, energy_of
from energymon.analysis.calibration import Look, calibrate, compared
from energymon.cli import calibrate as command
from energymon.cli import load
from energymon.cli.doctor import doctor
from energymon.errors import OptionError, SensorError, StoreError
from energymon.sensors.discover import SensorConfig
from joulefeed.child import Child

S = 10**9
ORIGIN_NS = 10**12
IDLE_W, BUSY_W = 80.0, 400.0
TICK_NS = 100_000_000
TRACES = Path(__file__).parent / "traces"
"""Readings of H200s with driver 580.159.04 under a step, a pulse and square waves, four ms a call."""
ABOUT = ("NVIDIA H100 80GB HBM3", "GPU-1", "580")


class Board:
    """A board whose value is the mean power of `samples` windows, an update apart, `delay_s` before the update."""

    def __init__(self, period_s, window_s, *, delay_s=0.0, samples=1, gain=1.0, spans=None):
        self.period_s, self.window_s, self.delay_s, self.samples, self.gain = period_s, window_s, delay_s, samples, gain
        self.spans = command.spans_from(ORIGIN_NS) if spans is None else spans
        self._edges_s = (np.array(self.spans).ravel() - ORIGIN_NS) / S
        held = np.where(np.arange(len(self._edges_s) - 1) % 2 == 0, np.diff(self._edges_s), 0.0)
        self._busy_s = np.concatenate([[0.0], np.cumsum(held)])

    def true_j(self, from_s, to_s):
        busy_s = np.interp(to_s, self._edges_s, self._busy_s) - np.interp(from_s, self._edges_s, self._busy_s)
        return IDLE_W * (to_s - from_s) + (BUSY_W - IDLE_W) * busy_s

    def updates(self, until_s):
        """Return the instants of the updates, s, and the power of each, W."""
        at_s = np.arange(0.013, until_s, self.period_s)
        ends_s = [at_s - self.delay_s - k * self.period_s for k in range(self.samples)]
        watts = sum(self.true_j(end_s - self.window_s, end_s) for end_s in ends_s) / self.window_s / self.samples
        return at_s, self.gain * watts

    def looks(self, *, counts, read_s=0.008, call_s=0.003):
        """Return what a reader sees whose calls take `call_s` and begin at random, `read_s` apart or so."""
        random = np.random.default_rng(7)
        until_s = command._duration_s()
        begins_s = np.cumsum(random.uniform(0.7, 1.6, int(until_s / read_s)) * read_s)
        at_s, watts = self.updates(until_s)
        noisy = watts + random.normal(0, 1.5, len(watts))
        values = np.cumsum(noisy) * self.period_s if counts else noisy
        shown = np.searchsorted(at_s, begins_s + call_s / 2) - 1
        return [
            Look(ORIGIN_NS + round(b * S), ORIGIN_NS + round((b + call_s) * S), round(float(values[i]), 3))
            for b, i in zip(begins_s, shown, strict=True)
            if i >= 0
        ]

    def calibrated(self, source="nvml-power", **read):
        looks = self.looks(counts=source == "nvml-counter", **read)
        return calibrate(looks, self.spans, ("gpu-0", "gpu", source), ABOUT)


@pytest.mark.parametrize(
    ("source", "board", "window_ms", "duty"),
    [
        pytest.param("nvml-power", Board(0.1, 0.025), 25, 0.25, id="A100 and H100: 25 of 100 ms"),
        pytest.param("nvml-power", Board(0.02, 0.01), 10, 0.5, id="V100: 10 of 20 ms"),
        pytest.param("nvml-power", Board(0.1, 0.1), 100, 1, id="all of 100 ms"),
        pytest.param("nvml-power-average", Board(0.1, 1.0), 1000, 1, id="the average of a second"),
        pytest.param("nvml-power-average", Board(0.1, 0.025, samples=10), 925, 0.25, id="ten samples of 25 ms"),
        pytest.param("nvml-counter", Board(0.1, 0.1), 100, 1, id="a counter of all joules"),
        pytest.param("nvml-counter", Board(0.02, 0.02), 20, 1, id="a counter of 20 ms"),
        pytest.param("nvml-counter", Board(0.1, 0.025), 25, 0.25, id="a counter of power sampled part-time"),
    ],
)
def test_a_sensor_that_behaves_as_published_is_found_out(source, board, window_ms, duty):
    found = board.calibrated(source, read_s=min(0.008, board.period_s / 5))
    assert found.update_ms == pytest.approx(board.period_s * 1e3, rel=0.01)
    # No time is known better than the readings are apart.
    assert found.window_ms == pytest.approx(window_ms, abs=found.read_ms / 2, rel=0.02)
    assert found.duty == pytest.approx(duty, abs=found.read_ms / 2 / found.update_ms)
    assert (found.idle_w, found.busy_w) == pytest.approx((IDLE_W, BUSY_W), rel=0.02)


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.06])
@pytest.mark.parametrize("source", ["nvml-power", "nvml-counter"])
def test_the_delay_from_the_load_to_the_value_is_found(source, delay_s):
    board = Board(0.1, 0.025 if source == "nvml-power" else 0.1, delay_s=delay_s)
    assert board.calibrated(source).delay_ms == pytest.approx(delay_s * 1e3, abs=5)


def test_a_register_of_a_millisecond_counts_all_of_the_time():
    found = calibrate(
        Board(0.001, 0.001).looks(counts=True, read_s=0.0004, call_s=1e-5),
        command.spans_from(ORIGIN_NS),
        ("package-0", "cpu", "rapl-perf"),
        ("a processor", "", "6.1"),
    )
    assert found.update_ms == pytest.approx(1, rel=0.05)
    assert found.duty == 1
    assert found.delay_ms < 3


@pytest.mark.parametrize(("name", "ratio"), [("h200-580", 1), ("h200-580-pulses", 1.02)])
def test_a_recorded_h200_samples_a_part_of_its_instant_power_and_counts_all_of_its_joules(name, ratio):
    trace = np.load(TRACES / f"{name}.npz")
    spans = [(int(b) * 1000, int(e) * 1000) for b, e in trace["load_us"]]
    found = {}
    for source, values in (
        ("nvml-counter", trace["nvml_counter_mj"]),
        ("nvml-power", trace["nvml_power_mw"]),
        ("nvml-power-average", trace["nvml_power_average_mw"]),
    ):
        rows = zip(trace["begin_us"], trace["end_us"], values, strict=True)
        looks = [Look(int(b) * 1000, int(e) * 1000, float(v) / 1e3) for b, e, v in rows]
        found[source] = calibrate(looks, spans, ("gpu-0", "gpu", source), ("NVIDIA H200", "GPU-4", "580.159.04"))
    found = {one.source: one for one in compared(found.values())}
    counter, power, average = found.values()
    assert counter.update_ms == pytest.approx(100, abs=0.5)
    assert (counter.window_ms, counter.duty) == (pytest.approx(100, abs=5), 1)
    assert power.window_ms == pytest.approx(25, abs=8)
    assert power.duty == pytest.approx(0.25, abs=0.08)
    assert (average.window_ms, average.duty) == (pytest.approx(1000, abs=60), 1)
    assert all(one.delay_ms < 40 for one in found.values())
    assert counter.ratio == pytest.approx(ratio, abs=0.01)
    known = accuracy_of("nvml-counter", counter.model, counter, TICK_NS)
    assert known.share == pytest.approx(0.04 + ratio - 0.99, abs=0.01)
    assert known.unseen_w == 0


def test_a_counter_that_contradicts_the_power_has_no_accuracy():
    counter, _ = compared([Board(0.1, 0.1, gain=1.74).calibrated("nvml-counter"), Board(0.1, 0.1).calibrated()])
    assert counter.ratio == pytest.approx(1.74, abs=0.03)
    known = accuracy_of(counter.source, counter.model, counter, TICK_NS)
    assert known.error_j(100.0, S) is None
    assert "1.7" in str(known)
    alone = Board(0.1, 0.1).calibrated("nvml-counter")
    assert "nothing was beside the counter" in str(accuracy_of(alone.source, alone.model, alone, TICK_NS))


def test_a_sensor_that_does_not_follow_the_load_has_no_window():
    random = np.random.default_rng(1)
    looks = [Look(ORIGIN_NS + k * S // 100, ORIGIN_NS + k * S // 100 + 1000, random.normal(90, 2)) for k in range(2400)]
    found = calibrate(looks, command.spans_from(ORIGIN_NS), ("gpu-0", "gpu", "nvml-power"), ABOUT)
    assert found.window_ms is None
    assert any("does not follow the load" in line for line in command.table_of([found]))


@pytest.mark.parametrize("spoilt", ["frozen", "unread", "no load"])
def test_a_calibration_that_can_say_nothing_is_refused(spoilt):
    board = Board(0.1, 0.1)
    looks = board.looks(counts=False)
    if spoilt == "frozen":
        looks = [look._replace(value=5.0) for look in looks]
    looks = looks[:3] if spoilt == "unread" else looks
    with pytest.raises(SensorError, match="gpu-0 gpu nvml-power"):
        calibrate(looks, [] if spoilt == "no load" else board.spans, ("gpu-0", "gpu", "nvml-power"), ABOUT)


def test_joules_that_are_sampled_part_time_are_within_their_accuracy_even_where_the_load_resonates():
    # Busy for the quarter of each 100 ms that is sampled, or just after it, or out of step.
    outside, wrong = 0, 0.0
    found, _ = compared([Board(0.1, 0.025).calibrated("nvml-counter"), Board(0.1, 0.1).calibrated()])
    known = accuracy_of(found.source, found.model, found, TICK_NS)
    random = np.random.default_rng(3)
    for _ in range(300):
        period_s, begin_s = random.choice([0.1, 0.05, 0.2, 0.073]), random.uniform(0, 0.1)
        starts = ORIGIN_NS + ((begin_s + np.arange(0, 9, period_s)) * S).astype(np.int64)
        board = Board(0.1, 0.025, spans=[(int(t), int(t + period_s * S / 4)) for t in starts])
        at_s, watts = board.updates(8.0)
        first, last = sorted(random.choice(np.arange(5, 75), 2, replace=False))
        joules = watts[first + 1 : last + 1].sum() * board.period_s
        error_j = abs(joules - board.true_j(at_s[first], at_s[last]))
        outside += error_j > known.error_j(joules, round((at_s[last] - at_s[first]) * S))
        wrong = max(wrong, error_j / joules)
    assert outside == 0
    assert wrong > 0.2, "the loads are such that an accuracy of the steady power alone would be wrong"


def test_nothing_is_claimed_of_a_sensor_that_nobody_has_measured():
    calibration = Board(0.1, 0.1).calibrated()
    assert "calibrate" in str(accuracy_of("nvml-power", "NVIDIA H100 PCIe", None, TICK_NS))
    assert accuracy_of("nvml-power", "NVIDIA B200", calibration, TICK_NS).share is None
    assert "RAPL" in str(accuracy_of("rapl-perf", "", None, TICK_NS))
    polled = accuracy_of("nvml-power", "NVIDIA H100 PCIe", Board(0.1, 0.025).calibrated(), TICK_NS)
    assert polled.unseen_w > 0.75 * (BUSY_W - IDLE_W), "ticks see a part of what is sampled part-time"


def test_windows_have_the_accuracy_that_the_agent_knew_when_it_started():
    counter, power = compared([Board(0.1, 0.1).calibrated("nvml-counter"), Board(0.1, 0.1).calibrated()])
    channel = {"device": "gpu-0", "domain": "gpu", "lag_s": 0.1, "model": ABOUT[0], "uuid": "GPU-1"}
    sensor = {"driver": "580", "channels": [{**channel, "source": c.source} for c in (counter, power)]}
    known = {key_of("GPU-1", "gpu-0", "gpu", c.source): c for c in (counter, power)}
    described = json.loads(json.dumps({"sensors": [with_accuracy(sensor, known, TICK_NS)]}))
    readings = [Reading(k * S, k * S, "n", "gpu-0", "gpu", "nvml-counter", 300.0 * k) for k in range(12)]
    found = energy_of(readings, channels_of(described, "n"), S, 11 * S, S)
    assert found.total.accuracy_j == pytest.approx(3000 * 0.05, abs=40)
    (best,) = found.best
    assert "2312.02741" in best.accuracy_origin
    without = energy_of(readings, channels_of({"sensors": [sensor]}, "n"), S, 11 * S, S)
    assert without.total.joules == found.total.joules
    assert without.total.accuracy_j is None


def test_calibrations_are_kept_by_device_and_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path / "state"))
    assert load_calibrations(pytest.fail) == {}
    counter, power = Board(0.1, 0.1).calibrated("nvml-counter"), Board(0.1, 0.1).calibrated()
    save_calibrations({key_of("GPU-1", "gpu-0", "gpu", "nvml-counter"): counter})
    path = save_calibrations({key_of("GPU-1", "gpu-0", "gpu", "nvml-power"): power})
    stored = load_calibrations(pytest.fail)
    assert sorted(one.source for one in stored.values()) == ["nvml-counter", "nvml-power"]
    assert [entry.name for entry in path.parent.iterdir()] == ["calibrations.json"]
    channel = {"device": "gpu-3", "domain": "gpu", "source": "nvml-power", "uuid": "GPU-1"}
    assert calibration_of(stored, {"driver": "580"}, channel) == power
    assert calibration_of(stored, {"driver": "590"}, channel) is None
    assert calibration_of(stored, {"driver": "580"}, {**channel, "uuid": "GPU-2"}) is None
    path.write_text("{")
    said = []
    assert load_calibrations(said.append) == {}
    assert "remove it" in said[0]
    with pytest.raises(StoreError, match="remove it"):
        save_calibrations(stored)


def test_a_processor_is_known_by_its_host_too_for_a_home_may_be_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path))
    found = replace(Board(0.1, 0.1).calibrated(), uuid="")
    channel = {"device": "package-0", "domain": "cpu", "source": "rapl-perf"}
    save_calibrations({key_of("", **channel): found})
    assert calibration_of(load_calibrations(pytest.fail), {}, channel) == found
    monkeypatch.setattr("platform.node", lambda: "another")
    assert calibration_of(load_calibrations(pytest.fail), {}, channel) is None


def test_the_newest_calibration_counts_whoever_made_it_and_a_user_keeps_no_copy_of_roots(tmp_path, monkeypatch):
    monkeypatch.delenv("ENERGYMON_STATE")
    monkeypatch.setattr(accuracy, "_SHARED", tmp_path / "root")
    one = Board(0.1, 0.1).calibrated()

    def save(folder, made_ns, *devices):
        monkeypatch.setattr(accuracy, "state_folder", lambda: tmp_path / folder)
        return save_calibrations({device: replace(one, made_ns=made_ns) for device in devices})

    save("root", 1, "a", "b")
    path = save("user", 2, "a")
    assert list(json.loads(path.read_text())["calibrations"]) == ["a"]
    save("root", 3, "b")
    monkeypatch.setattr(accuracy, "state_folder", lambda: tmp_path / "user")
    assert {key: c.made_ns for key, c in load_calibrations(pytest.fail).items()} == {"a": 2, "b": 3}
    save("root", 4, "a")
    save("user", 2, "c")
    assert load_calibrations(pytest.fail)["a"].made_ns == 4


def test_a_folder_that_cannot_be_written_is_said_before_the_load_runs(tmp_path, monkeypatch, plant):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path / "file" / "state"))
    monkeypatch.setattr(command, "_watched", lambda target: pytest.fail("the load was run"))
    with plant("amd-one-socket").running() as tree, pytest.raises(OSError, match="Not a directory"):
        command.run_calibrate(SensorConfig(sysfs=tree.root), ["cpu"], None, as_json=True)


def test_what_was_found_is_shown_where_it_cannot_be_stored_any_more(tmp_path, monkeypatch, plant, capsys):
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path / "state"))
    looks = Board(0.1, 0.1).looks(counts=True)

    def watched(target):
        (tmp_path / "state" / "calibrations.json").write_text("{")
        return {channel: looks for channel in target.channels}, command.spans_from(ORIGIN_NS)

    monkeypatch.setattr(command, "_watched", watched)
    with plant("amd-one-socket").running() as tree, pytest.raises(StoreError, match="remove it"):
        command.run_calibrate(SensorConfig(sysfs=tree.root), ["cpu"], None, as_json=True)
    (found,) = json.loads(capsys.readouterr().out)["calibrations"]
    assert found["update_ms"] == pytest.approx(100, rel=0.05)


def test_doctor_says_that_a_calibration_file_is_damaged_and_goes_on(tmp_path, monkeypatch, plant, capsys):
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path))
    (tmp_path / "calibrations.json").write_text("{")
    with plant("amd-one-socket").running() as tree:
        assert doctor(SensorConfig(sysfs=tree.root), TICK_NS, 0) == 0
    told = capsys.readouterr().out
    assert "holds no calibrations" in told
    assert "package-0" in told


def test_a_slow_value_of_a_fast_zone_is_fitted_with_few_averages(monkeypatch):
    """The mean of two seconds of a register of 5 ms is no mean of 400 windows, each with a share of its own."""
    taken = []
    real = calibration._residuals
    monkeypatch.setattr(
        calibration, "_residuals", lambda model, *more: taken.append(model.samples) or real(model, *more)
    )
    found = Board(0.005, 2.0).calibrated("nvml-counter", read_s=0.0017, call_s=1e-5)
    assert found.window_ms == pytest.approx(2000, rel=0.05)
    assert found.duty == 1
    assert max(taken) <= 41


def test_a_sensor_that_is_faster_than_its_reader_is_not_given_the_readers_period():
    slow, fast = Board(0.1, 0.1).calibrated(read_s=0.02), Board(0.004, 0.004).calibrated(read_s=0.02)
    assert slow.update == "100"
    assert fast.update.startswith("≤ 2")
    assert "updated every ≤ 2" in str(fast)


def test_power_over_missed_ticks_may_have_been_anything_between_idle_and_busy():
    power = Board(0.1, 0.1).calibrated()
    known = accuracy_of("nvml-power", power.model, power, TICK_NS)
    assert known.error_j(100, 2 * S, 0.5) - known.error_j(100, 2 * S) == pytest.approx(
        power.swing_w - known.unseen_w, rel=0.01
    )
    counter, _ = compared([Board(0.1, 0.1).calibrated("nvml-counter"), power])
    counted = accuracy_of("nvml-counter", counter.model, counter, TICK_NS)
    assert counted.error_j(100, 2 * S, 0.5) == counted.error_j(100, 2 * S), "a counter carries what was missed"


def test_a_rhythm_that_is_called_harmless_is_seen_at_all_phases():
    """Loads of 73 to 210 ms, busy for a quarter of each period, seen for 25 of each 100 ms in windows of 2 to 20 s."""
    known = Accuracy(0.05, 240.0, 0.0, "", update_s=0.1)
    assert known.resonance(0.1, 60)
    assert known.resonance(0.2, 60)
    assert not Accuracy(0.05, 0.0, 0.0, "").resonance(0.1, 60), "it samples all of the time"
    random = np.random.default_rng(5)
    wrong = {True: [], False: []}
    for _ in range(400):
        period_s, span_s, begin_s = random.uniform(0.073, 0.21), random.uniform(2, 20), random.uniform(0, 0.2)
        starts = ORIGIN_NS + ((begin_s + np.arange(0, 25, period_s)) * S).astype(np.int64)
        board = Board(0.1, 0.025, spans=[(int(t), int(t + period_s * S / 4)) for t in starts])
        at_s, watts = board.updates(begin_s + span_s)
        first = int(begin_s / 0.1) + 2
        true_j = board.true_j(at_s[first], at_s[-1])
        wrong[bool(known.resonance(period_s, span_s))].append(abs(watts[first + 1 :].sum() * 0.1 - true_j) / span_s)
    assert len(wrong[True]) > 20
    # W, of a swing of 320 W.
    assert max(wrong[True]) > 60
    assert np.median(wrong[True]) > 20
    assert max(wrong[False]) < 40
    assert np.median(wrong[False]) < 3


def test_a_window_says_that_its_rhythm_resonates_with_a_part_time_sensor(tmp_path):
    power = Board(0.1, 0.025).calibrated()
    channel = {
        "device": "gpu-0",
        "domain": "gpu",
        "source": "nvml-power",
        "lag_s": 0.1,
        "model": ABOUT[0],
        "uuid": "GPU-1",
    }
    known = {key_of("GPU-1", "gpu-0", "gpu", "nvml-power"): power}
    described = with_accuracy({"driver": "580", "channels": [channel]}, known, TICK_NS)
    with SqliteStore.create(tmp_path / "e.sqlite") as store:
        store.begin_session("n", 0, TICK_NS, {"sensors": [described]})
        store.append(
            [Reading(k * TICK_NS, k * TICK_NS, "n", "gpu-0", "gpu", "nvml-power", 30.0 * k) for k in range(200)]
        )
        for period_s, kinds in ((0.1, ["load-resonates"]), (0.0627, []), (None, [])):
            (window,) = energymon.query(store, 2 * S, 18 * S, period_s=period_s, clock="readings")
            assert [event.kind for event in window.events] == kinds


def test_a_load_begins_at_its_edge_and_not_while_it_waits_for_it(monkeypatch):
    slept = []
    monkeypatch.setattr(load.time, "monotonic_ns", lambda: round(sum(slept) * S))
    monkeypatch.setattr(load.time, "sleep", slept.append)
    load._wait_until(5_000_000)
    assert slept == [0.005]


@pytest.mark.process
def test_the_command_calibrates_a_processor_whose_counter_follows_the_load(tmp_path, monkeypatch, plant, capsys):
    monkeypatch.setenv("ENERGYMON_STATE", str(tmp_path / "state"))
    short = {"_IDLE_S": 1.2, "_STEP_S": 1.2, "_SQUARES_S": (0.15, 0.08), "_SQUARE_S": 1.2, "_TAIL_S": 0.5}
    for name, value in short.items():
        monkeypatch.setattr(command, name, value)
    tree = plant("amd-one-socket")
    (zone,) = tree.packages
    spans: list[tuple[int, int]] = []
    real_spans = command.spans_from
    monkeypatch.setattr(command, "spans_from", lambda start_ns: spans.extend(real_spans(start_ns)) or list(spans))
    stop = threading.Event()

    def count():
        began_ns = time.monotonic_ns()
        while not stop.wait(0.005):
            now_ns = time.monotonic_ns()
            busy_ns = sum(max(0, min(now_ns, end_ns) - begin_ns) for begin_ns, end_ns in spans if begin_ns < now_ns)
            zone.show(zone.start_uj + round((20 * (now_ns - began_ns) + 60 * busy_ns) / 1e3))

    counting = threading.Thread(target=count)
    counting.start()
    try:
        config = SensorConfig(sysfs=tree.root, nvml=tmp_path / "none.so")
        with pytest.raises(OptionError, match="expected some of cpu"):
            command.run_calibrate(config, ["gpu-0"], None, as_json=True)
        status = command.run_calibrate(config, ["cpu"], tmp_path / "raw", as_json=True)
        said = json.loads(capsys.readouterr().out)
        doctor(config, TICK_NS, 0)
    finally:
        stop.set()
        counting.join()
    assert status == 0, said
    told = capsys.readouterr().out
    assert "calibrated package-0 cpu rapl-powercap: updated every" in told
    assert "accuracy of package-0 cpu rapl-powercap: unknown: no error is documented for RAPL" in told
    (found,) = (SensorCalibration(**one) for one in said["calibrations"])
    assert (found.device, found.domain, found.source) == ("package-0", "cpu", "rapl-powercap")
    assert (found.idle_w, found.busy_w) == pytest.approx((20, 80), rel=0.1)
    assert list(load_calibrations(pytest.fail).values()) == [found]
    raw = np.load(tmp_path / "raw" / "cpu.npz")
    assert len(raw["load"]) == len(spans)
    assert raw["package-0 cpu rapl-powercap"].shape[1] == 3


@pytest.mark.gpu
@pytest.mark.process
def test_counter_and_power_agree_over_a_known_load_of_a_real_board(monkeypatch):
    monkeypatch.delenv("ENERGYMON_STATE")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    argv = [sys.executable, "-m", "energymon.cli.load", "gpu"]
    first = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    with energymon.Agent(sensors=["nvml"]) as agent, Child(argv, env=first, keep_stderr=True) as load:
        with energymon.Window("idle", agent=agent) as idle:
            time.sleep(1)
        assert load.ready(120)["ready"]
        begin_ns = time.monotonic_ns()
        load.send(json.dumps([[begin_ns, begin_ns + 6 * S]]).encode() + b"\n")
        time.sleep(2)
        with energymon.Window("load", agent=agent) as busy:
            time.sleep(3)
        assert load.read_line(20) is not None
        energies = {e.source: e for e in busy.energy.energies if e.device == "gpu-0"}
        idle_j = next(e.joules for e in idle.energy.energies if (e.device, e.source) == ("gpu-0", "nvml-counter"))
    counter = energies["nvml-counter"]
    print({source: (e.joules, e.error_j, e.accuracy_j) for source, e in energies.items()})
    assert counter.joules > 1.5 * idle_j * busy.duration_s / idle.duration_s
    for source in ("nvml-power", "nvml-power-average"):
        if source in energies:
            assert energies[source].joules == pytest.approx(counter.joules, rel=0.1, abs=counter.error_j)
    uuids = {c["uuid"] for sensor in agent.sensors for c in sensor["channels"] if c["device"] == "gpu-0"}
    stored = load_calibrations(pytest.fail).values()
    for one in (one for one in stored if one.uuid in uuids and one.source == "nvml-counter"):
        assert counter.joules == pytest.approx(one.busy_w * busy.duration_s, rel=0.15, abs=counter.error_j)
