"""Each rule passes on a good row and fails on the fault it is for."""

from dataclasses import fields, replace

import numpy as np
import pytest

from harness.cell.resources import Resources
from harness.config.regime import Regime
from harness.config.specs import Tolerances
from harness.results.checks import judge
from harness.results.make_rows import make_epoch_rows
from harness.testbed.base import ProbeResult
from harness.testbed.link.measure.bounds import list_link_bounds, predict_jitter
from harness.testbed.link.measure.watch import Ping
from tests.harness.conftest import batches
from tests.harness.records import PROBE, START, S, change, compared, with_epochs, with_events
from tests.rules import MATRIX

REGIME = {"name": "wan_30ms", "rtt_ms": 30.0, "rate_gbit": 1.0, "jitter_ms": 0.0, "loss_pct": 0.0}


@pytest.fixture
def remote(stored):
    epochs = [{"epoch": 1, "rx_bytes": 4000, "tx_bytes": 10, "drops": 0, "pause_s": 0.004}]
    good = {"before": PROBE, "after": PROBE, "epochs": epochs}
    return lambda **link: change(stored(), cell={"regime": REGIME}, link=good | link, pings=pings())


def pings(held_ms=0.0, of=0, every_ms=100, lost=0):
    """Return pings over the 4 s of the epoch: the first `of` are held, the last `lost` have no answer."""
    many = 4000 // every_ms
    trips = [30.1 + (held_ms if n < of else 0.0) if n < many - lost else None for n in range(many)]
    return [Ping(START + n * every_ms * 1_000_000, trip, None if trip is None else 88) for n, trip in enumerate(trips)]


def judged(data, **limits):
    rows, checks = judge([data], make_epoch_rows(data), Tolerances(**limits))
    return rows[0].valid, {c.rule: c.verdict for c in checks}


def test_a_good_row_is_valid(remote):
    valid, rules = judged(remote())
    assert valid == "valid"
    unjudged = {rule for rule, verdict in rules.items() if verdict == "not applicable"}
    assert unjudged == {"spread", "clock_offset", "shuffled", "step_time", "local_reads", "slowdown"}
    assert {verdict for rule, verdict in rules.items() if rule not in unjudged} == {"pass"}
    assert {"rtt_before", "rtt_after", "rate_before", "rate_after", "no_drops", "bytes_received"} <= set(rules)


@pytest.mark.parametrize(
    ("link", "rule"),
    [
        ({"before": {**PROBE, "rtt_ms_median": 33.0}}, "rtt_before"),
        ({"after": {**PROBE, "rtt_ms_median": 27.0}}, "rtt_after"),
        ({"after": {**PROBE, "rate_gbit": 0.5}}, "rate_after"),
        ({"before": None}, "rtt_before"),
        ({"before": {**PROBE, "rate_gbit": None}}, "rate_before"),
        ({"epochs": [{"epoch": 1, "rx_bytes": 4000}]}, "no_drops"),
        ({"epochs": [{"epoch": 1, "rx_bytes": 2999, "drops": 0}]}, "bytes_received"),
        ({"epochs": [{"epoch": 1, "rx_bytes": 1_100_000, "drops": 0}]}, "bytes_received"),
        ({"epochs": [{"epoch": 1, "rx_bytes": 4000, "drops": 2}]}, "no_drops"),
        ({"epochs": []}, "bytes_received"),
    ],
)
def test_a_fault_of_the_link_makes_the_row_invalid(link, rule, remote):
    valid, rules = judged(remote(**link))
    assert rules[rule] in ("fail", "unknown")
    assert valid.startswith("invalid: ")
    assert rule in valid


@pytest.mark.parametrize(
    ("asked_ms", "found_ms", "kept"),
    [
        (0.1, 0.1, True),
        (0.1, 0.19, True),
        (0.1, 0.21, False),
        (0.1, 0.061, True),
        (0.1, 0.059, False),
        (0.1, 0.0, False),
        (0.02, 0.011, False),
        (1.0, 0.91, True),
        (1.0, 0.89, False),
        (10.0, 9.71, True),
        (10.0, 9.69, False),
        (10.0, 10.29, True),
        (10.0, 10.31, False),
        (150.0, 145.4, False),
    ],
)
def test_a_round_trip_is_within_a_tenth_of_a_ms_or_3_percent_and_at_most_two_fifths_shorter(asked_ms, found_ms, kept):
    regime = Regime(name="r", rtt_ms=asked_ms, rate_gbit=1.0)
    probe = ProbeResult(**{**PROBE, "rtt_ms_median": found_ms})
    rtt, _ = list_link_bounds(regime, probe, Tolerances())
    assert rtt.kept is kept
    assert ("at least" in rtt.expected) == (asked_ms < 0.2)


def test_a_row_says_which_probe_of_the_link_it_is_judged_by(remote):
    near = {"regime": {**REGIME, "rtt_ms": 0.1}}
    wrong = {**PROBE, "rtt_ms_median": 0.05}
    probes = {"before": {**wrong, "earlier": [wrong, wrong]}, "after": {**wrong, "rtt_ms_median": 0.07}}
    valid, rules = judged(change(remote(**probes), cell=near))
    assert "rtt_before (0.05 ms, in probe 3, expected 0.1 ± 0.1, at least 0.06 ms)" in valid
    assert rules["rtt_after"] == "pass"


@pytest.mark.parametrize(
    ("steps", "syncs", "verdict", "told"),
    [
        ([1.0] * 6, [0.0] * 6, "pass", "the median +0.00 %, all +0.00 %"),
        ([1.019] * 6, [0.0] * 6, "pass", "the median +1.90 %"),
        ([1.0] * 5 + [1.1], [0.0] * 6, "pass", "all +1.10 % of the epoch"),
        ([1.0] * 5 + [1.15], [0.0] * 6, "pass", "all +1.64 % of the epoch"),  # 2.5 % of the steps' time
        ([1.5] * 6, [0.5] * 6, "pass", "all +0.00 %"),  # waiting for other ranks
        ([1.021] * 6, [0.0] * 6, "fail", "the median +2.10 %"),
        ([0.97] * 6, [0.0] * 6, "fail", "the median -3.00 %"),
        ([1.0] * 5 + [1.2], [0.0] * 6, "warn", "the median +0.00 %, all +2.17 % of the epoch"),
        ([1.5] * 6, [np.nan] * 6, "fail", "the median +50.00 %"),
    ],
)
def test_emulated_steps_take_their_nominal_time_the_median_and_all_together(steps, syncs, verdict, told, stored):
    ran = replace(batches([0.5] * 6, steps, size=1), nbytes=np.full(6, 500))
    data = replace(stored(), batches={1: replace(ran, sync_s=np.array(syncs), nominal_s=np.ones(6))})
    (row,), checks = judge([data], make_epoch_rows(data), Tolerances())
    (check,) = (one for one in checks if one.rule == "step_time")
    assert (check.verdict, row.is_valid) == (verdict, verdict != "fail")
    assert told in check.actual
    assert row.nominal_step_s == 1.0


def test_a_steps_nominal_time_is_that_of_its_own_batch_and_real_or_idle_steps_have_none(stored):
    for nominal_s, verdict in ((np.array([0.5, 0.75, 0.75]), "pass"), (np.zeros(3), "not applicable")):
        data = replace(stored(), batches={1: replace(batches(), nominal_s=nominal_s)})
        assert judged(data)[1]["step_time"] == verdict
    (row,) = make_epoch_rows(stored())
    assert (row.step_s, row.nominal_step_s) == (0.75, None)
    assert judged(stored())[1]["step_time"] == "not applicable"


IMPAIRED = {"name": "wan_57ms", "rtt_ms": 57.0, "rate_gbit": 1.0, "jitter_ms": 5.0, "loss_pct": 0.1}
KEPT = {
    **PROBE, "rtt_ms_median": 58.6, "rate_gbit": 0.98, "jitter_ms": 5.3,
    "packets_to_compute": 60_000, "lost_to_compute": 77, "packets_to_storage": 60_000, "lost_to_storage": 41,
}  # fmt: skip


def impaired(data, **changes):
    probe = {**KEPT, **changes}
    return change(data, cell={"regime": IMPAIRED}, link={"before": probe, "after": probe})


def test_a_link_that_loses_and_jitters_as_asked_is_valid(remote):
    valid, rules = judged(impaired(remote()))
    assert valid == "valid"
    assert {"jitter_before", "loss_to_compute_before", "loss_to_storage_after"} <= set(rules)
    assert "no_drops" not in rules


@pytest.mark.parametrize(
    ("changes", "rule", "told"),
    [
        ({"lost_to_compute": 120}, "loss_to_compute_before", "0.2 %, expected 0.1 ± 0.042 %"),
        ({"lost_to_compute": 120}, "loss_to_compute_after", "0.2 %"),
        ({"lost_to_storage": 30}, "loss_to_storage_before", "0.05 %"),
        ({"lost_to_storage": 0}, "loss_to_storage_after", "0 %"),
        ({"packets_to_compute": None, "lost_to_compute": None}, "loss_to_compute_before", "not measured"),
        ({"jitter_ms": 0.2}, "jitter_before", "0.2 ms, expected 5 ± 1.8 ms"),
        ({"jitter_ms": 10.0}, "jitter_after", "10 ms"),
        ({"jitter_ms": None}, "jitter_before", "not measured"),
        ({"rate_gbit": 0.5}, "rate_before", "0.5 Gbit/s"),
        ({"rtt_ms_median": 64.0}, "rtt_before", "64 ms, expected 57 ± 4.4 ms"),
    ],
)
def test_a_link_that_does_not_lose_or_jitter_as_asked_makes_the_row_invalid(changes, rule, told, remote):
    valid, rules = judged(impaired(remote(), **changes))
    assert rules[rule] in ("fail", "unknown")
    assert f"{rule} ({told}" in valid


def test_jitter_moves_a_round_trip_only_where_a_delay_would_be_below_zero():
    assert predict_jitter(Regime(name="far", rtt_ms=57.0, rate_gbit=1.0, jitter_ms=5.0)) == pytest.approx(
        (57.0, 5.0), rel=1e-3
    )
    median_ms, jitter_ms = predict_jitter(Regime(name="near", rtt_ms=10.0, rate_gbit=1.0, jitter_ms=5.0))
    drawn = np.maximum(0, np.random.default_rng(1).normal(5.0, 5.0, (2, 200_000))).sum(axis=0)
    assert median_ms == pytest.approx(np.median(drawn), rel=0.01)
    assert jitter_ms < 4.9


@pytest.mark.parametrize(
    ("kind", "needed", "received", "verdicts_"),
    [
        ("half", 1500, 1600, ("pass", "pass")),
        ("half", 1500, 1499, ("fail", "pass")),
        ("half", 1500, 2900, ("pass", "fail")),
        ("half", 1500, None, ("unknown", "unknown")),
        ("local", 0, 200, ("not applicable", "pass")),
        ("local", 0, 2900, ("not applicable", "fail")),
        ("remote", 3000, 2999, ("fail", None)),
    ],
)
def test_what_lies_beyond_the_link_comes_over_it_and_what_lies_here_does_not(kind, needed, received, verdicts_, remote):
    data = remote(epochs=[{"epoch": 1, "rx_bytes": received, "drops": 0}])
    placement = {"kind": kind, "remote_samples": 3, "remote_bytes": needed}
    rules = judged(change(data, cell={"placement": placement}))[1]
    assert (rules["bytes_received"], rules.get("local_bytes")) == verdicts_


@pytest.mark.parametrize(
    ("seen", "rule", "told"),
    [
        (pings(900.0, of=1), "link_pause", "a ping 900 ms, the delay line's own longest pause 4 ms"),
        (pings(19.0, of=3), "link_held", "3 of 40, expected ≤ 5 % of the pings held for more than 10 ms"),
        (pings(lost=2), "pings_lost", "2 lost, expected ≤ 1 of 40 pings lost"),
        (pings(every_ms=400), "link_held", "10 pings of 40"),
    ],
)
def test_a_link_that_did_not_carry_within_the_epoch_makes_the_row_invalid(seen, rule, told, remote):
    valid, rules = judged(replace(remote(), pings=seen))
    assert rules[rule] in ("fail", "unknown")
    assert f"{rule} ({told}" in valid


def test_a_delay_line_that_was_stopped_makes_the_row_invalid(remote):
    valid, rules = judged(remote(epochs=[{"epoch": 1, "rx_bytes": 4000, "drops": 0, "pause_s": 15.0}]))
    assert rules["link_pause"] == "fail" and "15000 ms" in valid and "200 ms" in valid


def test_pings_that_stand_behind_the_loader_s_own_packets_are_not_held(remote):
    # 12.5 MB take 100 ms at 1 Gbit/s.
    seen = [replace(ping, rtt_ms=130.0, carried_bytes=12_500_000) for ping in pings()]
    assert judged(replace(remote(), pings=seen))[0] == "valid"
    slow = [replace(ping, carried_bytes=250_000) for ping in seen]
    assert judged(replace(remote(), pings=slow))[1]["link_held"] == "fail"


def test_a_ping_that_is_lost_or_late_by_the_regime_s_own_loss_and_jitter_is_no_fault(remote):
    data = impaired(remote())
    seen = [replace(ping, rtt_ms=57.0 + 2 * 4 * 5) for ping in pings()]
    assert judged(replace(data, pings=seen))[0] == "valid"
    lossy = {"regime": {**IMPAIRED, "loss_pct": 5.0}}
    counts = {"packets_to_compute": 2000, "lost_to_compute": 100, "packets_to_storage": 2000, "lost_to_storage": 100}
    probe = {**KEPT, **counts}
    data = change(data, cell=lossy, link={"before": probe, "after": probe})
    assert judged(replace(data, pings=[replace(p, rtt_ms=p.rtt_ms and 57.0) for p in pings(lost=8)]))[0] == "valid"
    assert judged(replace(data, pings=pings(lost=20)))[1]["pings_lost"] == "fail"


def test_cpu_that_others_took_makes_the_row_invalid(stored, quiet):
    valid, rules = judged(with_events(stored(), end=quiet(run_cpu_s=1.6)))
    assert rules["others_cpu"] == "fail"
    told = (
        "others_cpu (2.00 s in 4.00 s of 2 CPUs (25.0 %), the run's threads waited 0.30 s for a CPU, expected CPU of "
    )
    assert told in valid
    # On many processors the share is small, and its joules are not.
    many = quiet(cpus=64, cpu_idle_s=250.0, run_cpu_s=0.0)
    rules = judged(with_events(stored(), end=many))[1]
    assert rules["others_cpu"] == "fail"
    rules = judged(with_events(stored(), end=quiet(run_cpu_s=1.6)), others_cpu_pct=30.0, others_cpus=1.0)[1]
    assert rules["others_cpu"] == "pass"


def test_stolen_time_makes_the_row_invalid(stored, quiet):
    valid, rules = judged(with_events(stored(), end=quiet(cpu_steal_s=0.8, run_cpu_s=2.8)))
    assert (rules["steal"], rules["others_cpu"]) == ("fail", "pass")
    assert "steal (10.0 %, expected ≤ 5 % of the CPUs' time stolen)" in valid


def test_a_machine_that_does_not_count_what_its_processors_do_makes_the_row_invalid(stored, quiet):
    valid, rules = judged(with_events(stored(), end=quiet(cpu_idle_s=0.0)))
    assert (rules["others_cpu"], rules["steal"]) == ("unknown", "unknown")
    assert "others_cpu (not measured: the kernel does not count" in valid


TOLD = {"t_ns": START + 1, "node": "n", "message": "it was so"}
UNREADABLE = {"device": "gpu-1", "domain": "gpu", "reason": "GPU is lost"}


@pytest.mark.parametrize(
    ("rule", "cell"),
    [
        ("alone", {"other_runs": ["abc123"]}),
        ("energy_agent", {"energy": {"events": [{**TOLD, "kind": "agent-died"}]}}),
        ("energy_agent", {"energy": {"events": [{**TOLD, "kind": "agent-back"}]}}),
        ("sensors", {"energy": {"events": [{**TOLD, "kind": "sensor-lost"}]}}),
        ("sensors", {"energy": {"unreadable": [UNREADABLE]}}),
    ],
)
def test_what_spoils_joules_alone_warns_and_leaves_the_row_valid(rule, cell, stored):
    valid, rules = judged(change(stored(), cell=cell))
    assert (valid, rules[rule]) == ("valid", "warn")
    assert judged(stored())[1][rule] == "pass"


@pytest.mark.parametrize(("share", "verdict"), [(1, "warn"), (2, "warn"), (0.2, "pass"), (0, "pass")])
def test_a_sensor_that_samples_part_time_in_step_with_the_steps_is_warned_of(share, verdict, stored):
    steps = len(stored().batches[1].step_s)
    known = {"share": 0.05, "unseen_w": 200.0, "edge_j": 0.0, "origin": "", "update_s": share * 4 / steps}
    series = [{"device": "package-0", "domain": "cpu", "source": "rapl-powercap", "accuracy": known}]
    valid, rules = judged(change(stored(), cell={"energy": {"series": series}}))
    assert (valid, rules["sensors"]) == ("valid", verdict)


def test_what_the_agent_reports_after_an_epoch_is_not_of_it(stored):
    late = [{**TOLD, "t_ns": START + 5 * S, "kind": kind} for kind in ("sensor-lost", "agent-died", "clock-step")]
    rules = judged(change(stored(), cell={"energy": {"events": late}}))[1]
    assert (rules["sensors"], rules["energy_agent"], rules["clock_offset"]) == ("pass", "pass", "not applicable")


@pytest.mark.parametrize("factor", [1000, 0.5, 0])
def test_bytes_are_those_of_the_samples_and_not_what_the_loader_says(factor, remote):
    data = remote(epochs=[{"epoch": 1, "rx_bytes": 2999, "drops": 0}])
    claimed = replace(data.batches[1], nbytes=(data.batches[1].nbytes * factor).astype(np.int64))
    data = replace(data, batches={1: claimed})
    (row,) = make_epoch_rows(data)
    assert (row.bytes, row.mb_per_s) == (3000, 3000 / 1e6 / 4)
    valid, rules = judged(data)
    # A loader that says it needs nothing cannot hide that it had the bytes from elsewhere.
    assert (rules["loader_bytes"], rules["bytes_received"]) == ("fail", "fail")
    assert f"loader_bytes ({round(3000 * factor)} of 3000 bytes" in valid


@pytest.mark.parametrize(("many", "verdict"), [(64, "fail"), (63, "warn")])
def test_an_epoch_that_comes_in_the_order_of_an_earlier_one_is_no_epoch_of_its_own(many, verdict, stored):
    first = stored()
    ids = np.random.default_rng(0).permutation(many)
    one = replace(first.batches[1], ids=ids, labels=None, nbytes=np.array([500 * many]))
    cell = {"dataset": {"name": "tiny", "samples": many, "bytes": 500 * many}}
    data = with_epochs(change(first, cell=cell, batches={1: one}, sizes=np.full(many, 500)), (2, one))
    rows, checks = judge([data], make_epoch_rows(data), Tolerances())
    assert [check.verdict for check in checks if check.rule == "shuffled"] == ["not applicable", verdict]
    assert [row.valid == "valid" for row in rows] == [True, verdict == "warn"]


def skipping(data, ids, *, told, count=None, policy="skip"):
    """Return a cell in which some ids came, and its loader told of samples that it left out."""
    event = {"event": "skipped", "epoch": 1, "utc_ns": START, "mono_ns": 0}
    event |= {"count": len(told) if count is None else count, "samples": {str(i): "is broken" for i in told}}
    nbytes = np.full(len([i for i in ids if i < 6]), 500)
    return change(
        data,
        cell={"on_error": policy},
        events=[*data.events, event],
        batches={1: replace(data.batches[1], ids=np.array(ids), labels=np.array(ids) % 4, nbytes=nbytes)},
    )


@pytest.mark.parametrize(
    ("ids", "told", "changes", "verdict", "words"),
    [
        ([0, 1, 2, 3], [4, 5], {}, "pass", "2 skipped by policy (4, 5), 0 missing, 0 repeated, 0 unknown"),
        ([0, 1, 2, 3], [4], {}, "fail", "1 skipped by policy (4), 1 missing"),
        ([0, 1, 2, 3, 3], [4, 5], {}, "fail", "2 skipped by policy (4, 5), 0 missing, 1 repeated"),
        ([0, 1, 2, 3, 9], [4, 5], {}, "fail", "1 unknown"),
        ([0, 1, 2, 3], [4, 5], {"count": 1}, "fail", "2 skipped by policy (4, 5) where the loader counted 1"),
        ([0, 1, 2, 3, 4, 5], [4, 5], {}, "fail", "0 skipped by policy where the loader counted 2"),
        ([0, 1, 2, 3], [4, 5], {"policy": "raise"}, "fail", "2 missing, 0 repeated"),
    ],
)
def test_samples_may_be_missing_where_the_declared_policy_accounts_for_them(ids, told, changes, verdict, words, stored):
    data = skipping(stored(), ids, told=told, **changes)
    rows, checks = judge([data], make_epoch_rows(data), Tolerances())
    (found,) = [check for check in checks if check.rule == "exactly_once"]
    assert (found.verdict, rows[0].valid == "valid") == (verdict, verdict == "pass")
    assert words in found.actual


@pytest.mark.parametrize(
    ("interval_ms", "missing", "verdict"), [(100, 1, "pass"), (100, 2, "fail"), (10, 3, "pass"), (10, 4, "fail")]
)
def test_one_tick_or_a_share_of_many_may_be_missed(interval_ms, missing, verdict, stored, readings):
    ticks = [START + k * interval_ms * S // 1000 for k in range(-5, 4500 // interval_ms) if not 0 < k <= missing]
    every = [readings()[0]._replace(tick_ns=tick, t_ns=tick, joules=(tick - START) / 1e7) for tick in ticks]
    data = change(stored(), cell={"energy": {"interval_ms": float(interval_ms)}}, readings=every)
    assert judged(data)[1]["missed_ticks"] == verdict


def test_without_a_sensor_or_a_tick_nothing_is_judged_and_a_sensor_that_tells_nothing_is_a_fault(stored, readings):
    for other in ([], readings("nvml-counter", "gpu", 60.0, "gpu-0")):
        assert judged(stored(readings=other))[1]["missed_ticks"] == "fail"
    data = stored()
    blind = change(data, cell={"energy": {"series": []}}, readings=[])
    rules = judged(blind)[1]
    assert {rules[rule] for rule in ("missed_ticks", "sensors", "energy_agent")} == {"not applicable"}
    short = with_events(data, {"mono_ns": 10_000_000}, {"mono_ns": 60_000_000, "duration_ns": 50_000_000})
    assert judged(short)[1]["missed_ticks"] == "not applicable"


@pytest.mark.parametrize(
    ("received", "cpu_s", "verdict"),
    [(0, 0.0, "pass"), (2**16, 0.5, "pass"), (2**16 + 1, 0.0, "fail"), (0, 0.6, "fail"), (None, 0.0, "unknown")],
)
def test_a_loader_that_works_before_the_epoch_s_clock_makes_the_row_invalid(received, cpu_s, verdict, remote):
    late = {"rx_bytes": received, "cell_cpu_s": cpu_s}, {"cell_cpu_s": cpu_s + 2.0}
    data = with_events(remote(), *late)
    assert judged(data)[1]["early_work"] == verdict
    # Another rank without such work does not hide it.
    idle = [{**event, "event": f"rank.{event['event']}", "rank": 1} for event in remote().events]
    idle[2]["cell_cpu_s"] = 2.0
    assert judged(with_events(data, more=idle), early_cpu_pct=0.0)[1]["early_work"] == verdict


def test_a_link_that_was_not_watched_makes_the_row_invalid_except_in_an_epoch_too_short_for_a_ping(remote):
    short = with_events(remote(), end={"utc_ns": START + 50_000_000, "duration_ns": 50_000_000})
    rules = judged(replace(short, pings=[]))[1]
    assert (rules["link_pause"], rules["link_held"]) == ("not applicable", "not applicable")
    for seen in ([], None):
        assert judged(replace(remote(), pings=seen))[1]["link_held"] == "unknown"


def test_a_host_with_the_lead_s_own_clock_has_no_offset_to_judge(stored):
    clock = {"source": "one clock", "offset_ms": 0.0, "error_ms": 0.0}
    host = {"host": "h", "roles": ["storage"], "interval_ms": 100.0, "offset_ns": 0}
    told = [{"t_ns": START + S, "node": "h", "kind": "clock-step", "message": "it was set"}]
    for events, verdict in (([], "not applicable"), (told, "fail")):
        record = {**host, "events": events, "clock_before": clock, "clock_after": clock}
        rules = judged(change(stored(), cell={"hosts": [record]}))[1]
        assert (rules["clock_offset_h"], rules["missed_ticks_h"]) == (verdict, "not applicable")


@pytest.mark.parametrize(("second_s", "verdict"), [(2.0, "pass"), (3.0, "warn")])
def test_a_spread_over_repeats_warns_and_first_epochs_are_compared_with_first_epochs(second_s, verdict, stored):
    cells = []
    for repeat, seconds in ((1, 2.0), (2, second_s)):
        first = stored().batches[1]
        data = with_epochs(stored(), (2, replace(first, ids=first.ids[::-1], labels=None)))
        data.events[-1]["duration_ns"] = int(seconds * S)
        cells.append(change(data, cell={"cell_id": f"c{repeat}", "repeat": repeat}))
    rows, checks = judge(cells, [row for c in cells for row in make_epoch_rows(c)], Tolerances())
    spreads = {(check.epoch, check.verdict, check.actual) for check in checks if check.rule == "spread"}
    assert spreads == {(1, "pass", "0.0 % over 2"), (2, verdict, f"{40 * (second_s - 2):.1f} % over 2")}
    assert {row.valid for row in rows} == {"valid"}


SET = [{"t_ns": START + 1, "node": "n", "kind": "clock-step", "message": "the wall clock was set by +2 s"}]


@pytest.mark.parametrize(
    ("clock", "offset", "events", "verdict"),
    [
        ("", None, [], "unknown"),
        ("", 1.5, [], "fail"),
        ("", -1.5, [], "fail"),
        ("", 0.2, [], "pass"),
        ("one clock", None, SET, "fail"),
        ("one clock", None, [{**SET[0], "t_ns": START - 1}], "not applicable"),
    ],
)
def test_a_clock_that_is_unknown_far_off_or_set_makes_the_row_invalid(clock, offset, events, verdict, stored):
    cell = {"clock": clock, "clock_offset_ms": offset, "energy": {"events": events}}
    assert judged(change(stored(), cell=cell))[1]["clock_offset"] == verdict


def test_what_reads_nothing_in_an_epoch_is_not_judged_on_samples_and_bytes(remote):
    nothing_came = change(remote(epochs=[{"epoch": 1, "rx_bytes": 0, "drops": 0}]), cell={"reads": "once"})
    valid, rules = judged(nothing_came)
    samples = ("bytes_received", "exactly_once", "loader_bytes", "shuffled")
    assert (valid, {rules[rule] for rule in samples}) == ("valid", {"not applicable"})
    assert judged(change(nothing_came, cell={"reads": "files"}))[1]["bytes_received"] == "fail"


UNEQUAL = {**REGIME, "paths": [{}, {"rate_gbit": 0.05, "loss_pct": 0.1}]}
QUICK = {"connections": 3, "packets": 2000, "bytes": 3_000_000, "lost": 0, "drops": 0}


@pytest.mark.parametrize(
    ("slow", "verdict", "told"),
    [
        ({"connections": 1, "packets": 800, "bytes": 1_000_000, "lost": 2, "drops": 7}, "pass",
         "3 MB over 3 connections; 1 MB over 1 connection (2 packets lost, 7 dropped)"),
        ({"connections": 0, "packets": 0, "bytes": 0, "lost": 0, "drops": 0}, "warn", "0 MB over 0 connections"),
        (None, "unknown", "not measured"),
    ],
)  # fmt: skip
def test_what_each_path_carried_is_shown_and_one_that_carried_nothing_is_warned_of(slow, verdict, told, remote):
    epoch = {"epoch": 1, "rx_bytes": 4000, "drops": 0, "pause_s": 0.004, "paths": [QUICK, slow] if slow else []}
    data = change(remote(epochs=[epoch]), cell={"regime": UNEQUAL})
    _, checks = judge([data], make_epoch_rows(data), Tolerances())
    (found,) = [check for check in checks if check.rule == "paths"]
    assert found.verdict == verdict
    assert told in found.actual


@pytest.mark.parametrize(
    ("asked_ms", "later_ms", "of", "many", "verdict"),
    [
        (0.1, 9.0, 40, 40, "fail"),
        (0.1, 0.25, 40, 40, "pass"),
        (0.1, 0.35, 21, 40, "fail"),
        (30.0, 0.8, 40, 40, "pass"),
        (30.0, 1.0, 40, 40, "fail"),
        (30.0, -0.8, 40, 40, "pass"),
        (30.0, -1.0, 40, 40, "fail"),
        # Half of the pings are right. A single late one shows nothing, of few too, and more than 5 % of them do.
        (30.0, 9.0, 1, 40, "pass"),
        (30.0, 9.0, 3, 40, "fail"),
        (30.0, 9.0, 1, 2, "pass"),
    ],
)
def test_a_link_is_as_far_in_the_epoch_as_its_regime_says(asked_ms, later_ms, of, many, verdict, remote):
    seen = [replace(p, rtt_ms=asked_ms + later_ms * (n < of), carried_bytes=0) for n, p in enumerate(pings()[:many])]
    quick = {"epochs": [{"epoch": 1, "rx_bytes": 4000, "drops": 0, "pause_s": 1e-5}]}
    data = change(remote(**quick), cell={"regime": {**REGIME, "rtt_ms": asked_ms}})
    assert judged(replace(data, pings=seen))[1]["link_in_epoch"] == verdict


def test_an_epoch_that_reads_nothing_leaves_the_link_idle_and_is_not_judged_by_it(remote):
    late = [replace(ping, rtt_ms=ping.rtt_ms + 9.0) for ping in pings()]
    assert judged(replace(remote(), pings=late))[1]["link_in_epoch"] == "fail"
    data = change(remote(), cell={"reads": "once"})
    assert judged(replace(data, pings=late))[1]["link_in_epoch"] == "not applicable"


def test_a_few_pings_that_the_delay_line_was_late_for_are_the_host_s_and_not_the_link_s(remote):
    seen = [replace(ping, rtt_ms=30.0 + (5.0 if n < 4 else 0.0)) for n, ping in enumerate(pings())]
    assert judged(replace(remote(), pings=seen))[1]["link_in_epoch"] == "pass"  # its longest pause is 4 ms
    assert judged(replace(remote(), pings=[replace(p, rtt_ms=39.0) for p in pings()[:2]]))[1]["link_in_epoch"] == "fail"
    quick = remote(epochs=[{"epoch": 1, "rx_bytes": 4000, "drops": 0, "pause_s": 1e-4}])
    assert judged(replace(quick, pings=seen))[1]["link_in_epoch"] == "fail"


def seen_resources(rates_gbit):
    """Return rows of resources.parquet once in 250 ms, between which the data interface received at these rates."""
    unknown = dict.fromkeys(field.name for field in fields(Resources))
    received = np.cumsum([0, *(rate * 1e9 / 8 / 4 for rate in rates_gbit)])
    return [
        Resources(**(unknown | {"utc_ns": START + n * S // 4, "cell_cpu_s": 0.0, "rss_bytes": 0, "rx_bytes": int(one)}))
        for n, one in enumerate(received)
    ]


def test_a_link_that_brings_more_in_a_second_than_its_rate_has_no_cap(remote):
    fast = replace(remote(), resources=seen_resources([0.2] * 6 + [1.4] * 4 + [0.2] * 4))
    valid, rules = judged(fast)
    assert rules["link_in_epoch"] == "fail" and "up to 1.3 Gbit/s, expected" in valid
    full = replace(remote(), resources=seen_resources([1.0] * 15))
    assert judged(full)[1]["link_in_epoch"] == "pass"


@pytest.mark.parametrize(
    ("start", "end", "limits", "verdict"),
    [
        ({}, {"throttled": 3, "throttled_s": 0.02}, {}, "fail"),
        ({}, {"throttled": 3, "throttled_s": 0.02}, {"throttled_pct": 1.0}, "pass"),
        ({"throttled": 9, "throttled_s": 1.5}, {"throttled": 9, "throttled_s": 1.5}, {}, "pass"),
        ({"throttled": 9, "throttled_s": 1.5}, {"throttled": 0, "throttled_s": 0.0}, {}, "unknown"),
        ({"throttled": None, "throttled_s": None}, {"throttled": None, "throttled_s": None}, {}, "not applicable"),
    ],
)
def test_an_epoch_in_which_a_cpu_quota_stopped_the_run_is_invalid(start, end, limits, verdict, stored, quiet):
    valid, rules = judged(with_events(stored(), start=start, end=quiet(**end)), **limits)
    assert rules["throttled"] == verdict
    assert (valid == "valid") == (verdict in ("pass", "not applicable"))


@pytest.mark.parametrize(
    ("end", "cell", "rule", "verdict"),
    [
        ({"memory_wait_s": 0.5}, {}, "pressure_memory", "fail"),
        ({"memory_wait_s": 0.3}, {}, "pressure_memory", "pass"),
        ({"memory_wait_s": 0.5}, {"memory": {"limit_bytes": 1e9}}, "pressure_memory", "warn"),
        ({"swapped_in_bytes": 2_000_000}, {}, "pressure_memory", "fail"),
        ({"memory_wait_s": None, "swapped_in_bytes": None}, {}, "pressure_memory", "not applicable"),
        ({"memory_wait_s": None}, {}, "pressure_memory", "pass"),
        ({"memory_wait_s": None, "swapped_in_bytes": 2_000_000}, {}, "pressure_memory", "fail"),
        ({"disk_wait_s": 0.5, "disk_written_bytes": 200_000_000}, {}, "pressure_io", "warn"),
        # A loader that reads from a disk waits for it.
        ({"disk_wait_s": 3.5, "disk_read_bytes": 2e8, "run_disk_bytes": 1.9e8}, {}, "pressure_io", "pass"),
        ({"disk_wait_s": 0.3, "disk_written_bytes": 200_000_000}, {}, "pressure_io", "pass"),
        ({"disk_wait_s": None}, {}, "pressure_io", "not applicable"),
    ],
)
def test_waiting_for_memory_refuses_a_row_and_waiting_for_the_disks_of_others_warns(
    end, cell, rule, verdict, stored, quiet
):
    valid, rules = judged(with_events(change(stored(), cell=cell), end=quiet(**end)))
    assert rules[rule] == verdict
    assert (valid == "valid") == (verdict != "fail")


def spun(first, before, after, scatter=0.003):
    each = {"first": first, "before": before, "after": after}
    return {"spin": {name: {"best_s": ms / 1e3, "median_s": ms / 1e3 * (1 + scatter)} for name, ms in each.items()}}


@pytest.mark.parametrize(
    ("spin", "verdict"),
    [
        (spun(0.6, 0.61, 0.605), "pass"),
        (spun(0.6, 0.6, 0.62), "warn"),
        (spun(0.6, 0.625, 0.625), "warn"),
        # On a host that is shared the speed changes at any moment: only a greater change is one.
        (spun(0.6, 0.6, 0.66, scatter=0.05), "pass"),
        (spun(0.6, 0.6, 0.9, scatter=0.05), "warn"),
    ],
)
def test_a_host_that_computes_at_another_speed_after_the_cell_warns(spin, verdict, stored):
    valid, rules = judged(change(stored(), cell=spin))
    assert (valid, rules["frequency"]) == ("valid", verdict)


def test_a_folder_from_before_these_rules_keeps_its_verdict(stored, quiet):
    old = stored()
    known = {"throttled", "throttled_s", "memory_wait_s", "disk_wait_s", "devices"}
    old = replace(old, events=[{k: v for k, v in event.items() if k not in known} for event in old.events])
    valid, rules = judged(change(old, cell={"spin": None}))
    assert valid == "valid"
    found = {rules[rule] for rule in ("throttled", "pressure_memory", "pressure_io", "slowdown", "frequency")}
    assert found == {"warn"}


def test_the_processes_that_took_the_cpu_are_named(stored, quiet):
    others = [["python train.py", 41, 1.5], ["java", 42, 0.25], ["sh", 43, 0.1], ["cron", 44, 0.05]]
    valid, _ = judged(with_events(stored(), end=quiet(run_cpu_s=1.6, strangers=others)))
    told = "python train.py (process 41) used 1.50 s; java (process 42) used 0.25 s; sh (process 43) used 0.10 s"
    assert told in valid
    assert "cron" not in valid


def content_of(data, *found, **cell):
    """Return the rule's result for the epoch of a cell of which such events of compared samples are stored."""
    events = [event for event in data.events if event["event"] != "content"]
    data = change(replace(data, events=[*events, *found]), cell=cell)
    _, checks = judge([data], make_epoch_rows(data), Tolerances())
    return next((check.verdict, check.actual) for check in checks if check.rule == "content")


def test_a_sample_that_is_not_what_the_pipeline_makes_is_named(stored):
    wrong = compared(1, wrong={"3": "all of its data are 0"})
    assert content_of(stored(), compared(1)) == ("pass", "4 compared")
    assert content_of(stored(), wrong) == ("fail", "1 of 4 wrong: of sample 3, all of its data are 0")
    assert content_of(stored(), wrong, reads="once")[0] == "not applicable"


def test_samples_that_could_not_be_made_again_are_told_from_those_that_nobody_looked_at(stored):
    away = "the samples' files are not on the node that trains"
    assert content_of(stored(), compared(1, count=0, reason=away)) == ("not applicable", away)
    assert content_of(stored(), compared(2)) == content_of(stored()) == ("unknown", "not compared")


@pytest.mark.parametrize(
    ("read", "cell", "verdict"),
    [
        (3000, {}, "pass"),
        (2701, {}, "pass"),
        (2699, {"on_disk": True}, "fail"),
        (570, {"on_disk": True}, "fail"),
        (570, {"on_disk": False}, "not applicable"),
        (0, {"on_disk": True}, "fail"),
        (0, {"on_disk": False}, "not applicable"),
        (None, {}, "not applicable"),
        (570, {"caches": ""}, "not applicable"),
        (570, {"caches": "fadvise"}, "not applicable"),
        (570, {"on_disk": True, "caches": "vm.drop_caches, mapped pages stay"}, "fail"),
        (570, {"reads": "once"}, "not applicable"),
        (570, {"regime": REGIME}, "not applicable"),
    ],
)
def test_an_epoch_of_local_samples_reads_them_from_the_disk_where_caches_were_dropped(read, cell, verdict, stored):
    data = with_events(stored(), {"cell_read_bytes": 0}, {"cell_read_bytes": read})
    assert judged(change(data, cell={"caches": "vm.drop_caches", **cell}))[1]["local_reads"] == verdict


def test_a_later_epoch_reads_from_the_disk_where_caches_are_dropped_before_each(stored):
    data = with_events(stored(), {"cell_read_bytes": 0}, {"cell_read_bytes": 570})
    data = with_epochs(data, (2, data.batches[1]))
    found = {}
    for cold in ("epoch", "cell"):
        one = change(data, cell={"caches": "vm.drop_caches", "cold": cold, "on_disk": True})
        _, checks = judge([one], make_epoch_rows(one), Tolerances())
        found[cold] = [check.verdict for check in checks if check.rule == "local_reads"]
    assert found == {"epoch": ["fail", "fail"], "cell": ["fail", "not applicable"]}


@pytest.mark.parametrize(
    ("cpu_s", "rx_bytes", "verdict"),
    [(0.4, 0, "pass"), (0.9, 0, "pass"), (1.1, 0, "warn"), (0.1, 65_000, "pass"), (0.1, 66_000, "warn")],
)
def test_set_up_that_takes_a_tenth_of_an_epoch_is_warned_of(cpu_s, rx_bytes, verdict, remote):
    begins = {"cell_cpu_s": cpu_s, "rx_bytes": rx_bytes}
    data = with_events(remote(), begins, {"cell_cpu_s": cpu_s + 10.0, "rx_bytes": rx_bytes})
    valid, rules = judged(data, early_cpu_pct=100, early_bytes_pct=10_000)
    assert (valid, rules["setup_work"]) == ("valid", verdict)


def a_board(data, readings, times):
    """Return the data of a cell on a board whose counter shows `times` what its average power does."""
    seen = {"nvml-counter": 300.0 * times, "nvml-power-average": 300.0}
    series = [{"device": "gpu-0", "domain": "gpu", "source": source} for source in seen]
    rows = [row for source, watts in seen.items() for row in readings(source, "gpu", watts, "gpu-0")]
    return change(data, cell={"energy": {"series": series}}, readings=rows)


def test_sources_that_contradict_each_other_refuse_a_row(stored, readings):
    assert judged(a_board(stored(), readings, 1.0))[0] == "valid"
    data = a_board(stored(), readings, 1.74)
    (row,), checks = judge([data], make_epoch_rows(data), Tolerances())
    (check,) = [one for one in checks if one.rule == "meters"]
    assert check.verdict == "fail"
    assert MATRIX["meters"].pattern.fullmatch(check.actual), check.actual
    assert row.valid.startswith("invalid: meters (nvml-counter of gpu-0 gpu has 2088.0 J")
    assert row.disagreements == check.actual
    silent = change(stored(readings=[]), cell={"energy": {"series": []}})
    assert judged(silent)[1]["meters"] == "not applicable"


def test_a_meter_at_the_wall_misses_no_ticks(stored, readings):
    wall = {"device": "plug", "domain": "wall", "source": "shelly-power"}
    data = stored()
    series = [{"device": "package-0", "domain": "cpu", "source": "rapl-powercap"}, wall]
    data = change(data, cell={"energy": {"series": series}}, readings=[*data.readings, *readings(**wall)[::10]])
    assert judged(data)[1]["missed_ticks"] == "pass"
