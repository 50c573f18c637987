"""The validity rules: each returns what it expected, what it found and a verdict; pure.

The same rules judge a run as it ends and a finished folder (`python -m harness.results.collect FOLDER`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from energymon import Event, missed_ticks
from harness.cell.skipped import id_list, skipped_by_epoch
from harness.config.regime import Regime
from harness.config.specs import Tolerances
from harness.results.attributed import compute_cpu_excess, count_cpu_s
from harness.results.cells import HostRecord
from harness.results.disturbance import LinkPings, measure_others, summarize_pings
from harness.results.early import measure_early
from harness.results.epoch_row import EpochRow, compute_spread, select_settled
from harness.results.epochs import CellData, find_epoch_edges, list_channels, to_readings_ns
from harness.results.ranks import rank_rows
from harness.testbed.link.measure.bounds import CHANCE, list_link_bounds
from harness.testbed.link.userspace.paths import PathCounters

# A rule that only warns says something of a group of rows; the rows themselves stay valid.
PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE = "pass", "warn", "fail", "unknown", "not applicable"
ONE_CLOCK = "one clock"
"""What a cell stores of its clocks when both nodes are this machine."""
READS_ONCE = "one batch, made before the epoch: nothing is read"
NO_SENSOR = "no sensor"
_OF_HOST = ("missed_ticks", "clock_offset")
RULES = frozenset(
    {
        *("rtt_before", "rtt_after", "rate_before", "rate_after", "jitter_before", "jitter_after"),
        *("loss_to_compute_before", "loss_to_compute_after", "loss_to_storage_before", "loss_to_storage_after"),
        *("no_drops", "link_pause", "link_held", "pings_lost", "paths", "bytes_received", "local_bytes"),
        *("exactly_once", "loader_bytes", "labels", "shuffled", "early_work", "others_cpu", "steal", "alone", "spread"),
        *("cpu_parts", "sensors", "energy_agent", *_OF_HOST, *(f"{rule}_HOST" for rule in _OF_HOST)),
    }
)
"""Names of the rules; HOST stands for the name of another host."""
FEW = 64
"""Samples below which two epochs may have the same order by chance: a loader may shuffle runs of several."""
EARLY_BYTES = 2**16
"""Bytes that keep-alives and the end of the epoch before may take, however few an epoch's own are."""
MOST_EXCESS = 0.03
"""Share of a host's CPU seconds by which those of the run's processes there may exceed them."""
ROUNDING_S = 0.05
"""The kernel counts CPU time in steps of 10 ms, for each process by itself."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule's result for one row."""

    cell_id: str
    epoch: int | None
    """None for a rule of the whole cell."""
    rule: str
    expected: str
    actual: str
    verdict: str
    """pass, warn, fail, unknown when what it needs was not measured, or not applicable."""


def judge(
    cells: Sequence[CellData], rows: Sequence[EpochRow], tolerances: Tolerances
) -> tuple[list[EpochRow], list[Check]]:
    """Return the rows with their verdicts, and every check."""
    data = {c.cell.cell_id: c for c in cells}
    checks = [check for row in rows for check in _check_row(data[row.cell_id], row, tolerances)]
    checks += _check_spread(rows, tolerances)
    failed: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for check in checks:
        if check.verdict in (FAIL, UNKNOWN):
            failed[check.cell_id, check.epoch].append(f"{check.rule} ({check.actual}, expected {check.expected})")
    judged = []
    for row in rows:
        reasons = failed[row.cell_id, row.epoch]
        judged.append(replace(row, valid="invalid: " + "; ".join(reasons) if reasons else "valid"))
    return judged, checks


def _check_row(data: CellData, row: EpochRow, tolerances: Tolerances) -> Iterable[Check]:
    yield from _check_link(data, row, tolerances)
    yield from _list_sample_checks(data, row)
    yield _check_early_work(data, row, tolerances)
    yield _check_missed_ticks(data, row, tolerances)
    for host in data.cell.hosts:
        yield _check_host_ticks(data, row, tolerances, host)
        yield _check_host_clock(row, tolerances, host)
    yield _check_sensors(data, row)
    yield _check_agent(data, row)
    yield _check_clock(data, row, tolerances)
    yield _check_alone(data, row)
    yield _check_cpu_parts(data, row)
    yield from _check_disturbance(data, row, tolerances)


def _list_sample_checks(data: CellData, row: EpochRow) -> Iterable[Check]:
    """Judge what came and in which order; of a loader that reads nothing in an epoch, ids and bytes are no evidence."""
    checks = [_check_exactly_once(data, row), _check_loader_bytes(data, row), _check_labels(data, row)]
    checks.append(_check_shuffled(data, row))
    received = [] if data.cell.regime.is_local else _check_bytes(data, row, data.link.get_epoch(row.epoch).rx_bytes)
    for check in [*received, *checks]:
        yield replace(check, actual=READS_ONCE, verdict=NOT_APPLICABLE) if data.cell.reads == "once" else check


def _make_check(
    row: EpochRow, rule: str, expected: str, actual: str, verdict: str | bool, host: str | None = None
) -> Check:
    assert (rule if host is None else f"{rule}_HOST") in RULES
    if isinstance(verdict, bool):
        verdict = PASS if verdict else FAIL
    return Check(row.cell_id, row.epoch, rule if host is None else f"{rule}_{host}", expected, actual, verdict)


def _check_link(data: CellData, row: EpochRow, tolerances: Tolerances) -> Iterable[Check]:
    regime = data.cell.regime
    if regime.is_local:
        return
    for when, probe in (("before", data.link.before), ("after", data.link.after)):
        for bound in list_link_bounds(regime, probe, tolerances):
            if bound.found is None:
                yield _make_check(row, f"{bound.rule}_{when}", bound.expected, "not measured", UNKNOWN)
            else:
                pair = f" between {probe.pair}" if probe and probe.pair and bound.rule == "rtt" else ""
                earlier = f", in probe {len(probe.earlier) + 1}" if probe and probe.earlier else ""
                actual = f"{bound.found:.3g} {bound.unit}{pair}{earlier}"
                yield _make_check(row, f"{bound.rule}_{when}", bound.expected, actual, bound.kept)
    epoch = data.link.get_epoch(row.epoch)
    if regime.loss_pct == 0:
        yield _check_count(row, "no_drops", "0 packets dropped in the link's queue", epoch.drops, "dropped", (0, 0))
    if regime.paths:
        yield _check_paths(row, len(regime.paths), epoch.paths)


def _check_paths(row: EpochRow, asked: int, found: Sequence[PathCounters]) -> Check:
    """Show what each path carried; a loader with fewer connections than the regime has paths leaves some out."""
    expected = f"each of {asked} paths carries part of the epoch"
    if len(found) != asked:
        return _make_check(row, "paths", expected, "not measured", UNKNOWN)
    actual = "; ".join(
        f"{path.bytes / 1e6:.3g} MB over {path.connections} connection{'' if path.connections == 1 else 's'}"
        + (f" ({path.lost} packets lost, {path.drops} dropped)" if path.lost or path.drops else "")
        for path in found
    )
    return _make_check(row, "paths", expected, actual, PASS if all(path.connections for path in found) else WARN)


def _check_bytes(data: CellData, row: EpochRow, received: int | None) -> Iterable[Check]:
    """Judge what came over the link: all that lies beyond it, and not what lies here."""
    if data.cell.ranks:
        yield _check_bytes_by_node(data, row)
        return
    placement = data.cell.placement
    needed = row.bytes if placement.kind == "remote" else placement.remote_bytes
    share = "" if needed == row.bytes else f" of {row.bytes}"
    expected = f"≥ {needed}{share} bytes on the data interface (no hidden cache)"
    if needed:
        yield _check_count(row, "bytes_received", expected, received, "bytes", (needed, math.inf))
    else:
        yield _make_check(row, "bytes_received", expected, "no sample lies beyond the link", NOT_APPLICABLE)
    if share:
        most = needed + (row.bytes - needed) // 2
        expected = f"≤ {most} bytes on the data interface (what lies on the compute node stays there)"
        yield _check_count(row, "local_bytes", expected, received, "bytes", (0, most))


def _check_count(
    row: EpochRow, rule: str, expected: str, found: int | None, unit: str, allowed: tuple[float, float]
) -> Check:
    if found is None:
        return _make_check(row, rule, expected, "not measured", UNKNOWN)
    return _make_check(row, rule, expected, f"{found} {unit}", allowed[0] <= found <= allowed[1])


def _check_bytes_by_node(data: CellData, row: EpochRow) -> Check:
    """Judge what each node received: its ranks' samples that lie elsewhere, and the gradients of the other nodes."""
    needed: dict[str, int] = defaultdict(int)
    received: dict[str, int | None] = {}
    for rank in rank_rows(data):
        if rank.epoch == row.epoch:
            record = data.cell.ranks[rank.rank]
            epoch = next(one for one in record.epochs if one.epoch == row.epoch)
            needed[rank.address] += epoch.remote_bytes + epoch.gradient_bytes
            received[rank.address] = rank.rx_bytes
    expected = ", ".join(f"≥ {count} bytes at {address}" for address, count in needed.items())
    actual = ", ".join(f"{'unknown' if count is None else count} at {address}" for address, count in received.items())
    known = {address: count for address, count in received.items() if count is not None}
    verdict = UNKNOWN if len(known) < len(received) else all(known[one] >= count for one, count in needed.items())
    if not any(needed.values()):
        verdict = NOT_APPLICABLE
    return _make_check(
        row, "bytes_received", f"{expected} (samples that lie elsewhere, and gradients)", actual, verdict
    )


def _check_exactly_once(data: CellData, row: EpochRow) -> Check:
    """Judge the ids that came; those that the loader's declared policy left out need not come, and are counted."""
    n = data.cell.dataset.samples
    ids = data.batches[row.epoch].ids
    inside = ids[(ids >= 0) & (ids < n)]
    seen = np.bincount(inside, minlength=n)
    absent, repeated = np.flatnonzero(seen == 0).tolist(), int((seen > 1).sum())
    strange = len(ids) - len(inside)
    over = f" over {len(data.cell.ranks)} ranks" if data.cell.ranks else ""
    expected, actual = f"each of {n} samples once{over}", ""
    told = skipped_by_epoch(data.events).get(row.epoch) if data.cell.on_error == "skip" else None
    left_out = [] if told is None else [sample_id for sample_id in absent if sample_id in told.samples]
    miscounted = told is not None and told.count != len(left_out)
    if told is not None:
        expected += ", or skipped by policy (on_error=skip)"
        actual = f"{len(left_out)} skipped by policy ({id_list(left_out)})" if left_out else "0 skipped by policy"
        actual += f" where the loader counted {told.count}, " if miscounted else ", "
    missing = len(absent) - len(left_out)
    actual += f"{missing} missing, {repeated} repeated, {strange} unknown"
    return _make_check(row, "exactly_once", expected, actual, not (missing or repeated or strange or miscounted))


def _check_loader_bytes(data: CellData, row: EpochRow) -> Check:
    """Judge what the loader says that it read by the sizes of the samples that it brought."""
    expected = "the loader counts the bytes of its samples, as samples.parquet has them"
    if data.sizes is None:
        return _make_check(row, "loader_bytes", expected, "the run's samples.parquet is missing", UNKNOWN)
    counted = int(data.batches[row.epoch].nbytes.sum())
    return _make_check(row, "loader_bytes", expected, f"{counted} of {row.bytes} bytes", counted == row.bytes)


def _check_labels(data: CellData, row: EpochRow) -> Check:
    """Judge the labels that came by those of the dataset; a loader that decodes nothing may bring the right ids."""
    expected = "each sample with its label, as samples.parquet has them"
    batches = data.batches[row.epoch]
    if batches.labels is None:
        return _make_check(row, "labels", expected, "not kept: no classes, or an older run", NOT_APPLICABLE)
    if data.labels is None:
        return _make_check(row, "labels", expected, "the run's samples.parquet is missing", UNKNOWN)
    if len(batches.labels) != len(batches.ids):
        return _make_check(row, "labels", expected, "batches with labels other than a whole number a sample", UNKNOWN)
    known = (batches.ids >= 0) & (batches.ids < len(data.labels))
    ids, found = batches.ids[known], batches.labels[known]
    wrong = np.flatnonzero(found != data.labels[ids])
    actual = f"{len(wrong)} of {len(ids)} wrong"
    if len(wrong):
        sample_id = ids[wrong[0]]
        actual += f", the first of them {found[wrong[0]]} where sample {sample_id} has {data.labels[sample_id]}"
    return _make_check(row, "labels", expected, actual, not len(wrong))


def _check_shuffled(data: CellData, row: EpochRow) -> Check:
    """Judge whether the order is that of an earlier epoch, where there is one; few samples have it again by chance."""
    expected = "an order of samples that no earlier epoch of the cell had"
    ids = data.batches[row.epoch].ids
    earlier = [epoch for epoch in data.batches if epoch < row.epoch]
    if not earlier:
        return _make_check(row, "shuffled", expected, "the first epoch of the cell", NOT_APPLICABLE)
    same = [epoch for epoch in earlier if np.array_equal(data.batches[epoch].ids, ids)]
    if not same:
        return _make_check(row, "shuffled", expected, "its own", PASS)
    return _make_check(row, "shuffled", expected, f"that of epoch {same[0]}", WARN if len(ids) < FEW else FAIL)


def _check_early_work(data: CellData, row: EpochRow, tolerances: Tolerances) -> Check:
    """Judge what the loader received and computed before the epoch's clock began, without the set-up of the cell."""
    few = f"{tolerances.early_bytes_pct:g} % of the epoch's bytes and {tolerances.early_cpu_pct:g} % of its CPU seconds"
    expected = f"at most {few} between set-up or the epoch before and the epoch's clock"
    early = measure_early(data.events, row.epoch)
    if early is None:
        return _make_check(row, "early_work", expected, "not counted: the run is from before it was", WARN)
    if early.cpu_s is None or early.epoch_cpu_s is None or (early.rx_bytes is None and not data.cell.regime.is_local):
        return _make_check(row, "early_work", expected, "not measured", UNKNOWN)
    most_bytes = max(EARLY_BYTES, row.bytes * tolerances.early_bytes_pct / 100)
    most_s = max(
        tolerances.early_cpu_s * max(1, len(data.cell.ranks)), early.epoch_cpu_s * tolerances.early_cpu_pct / 100
    )
    received = "" if early.rx_bytes is None else f"{early.rx_bytes} of {row.bytes} bytes, "
    actual = f"{received}{early.cpu_s:.2f} s of CPU beside {early.epoch_cpu_s:.2f} s in the epoch"
    fine = (early.rx_bytes or 0) <= most_bytes and early.cpu_s <= most_s
    return _make_check(row, "early_work", expected, actual, fine)


def _check_missed_ticks(data: CellData, row: EpochRow, tolerances: Tolerances) -> Check:
    expected = f"< {tolerances.missed_ticks_pct:g} % of the ticks"
    energy = data.cell.energy
    start_ns, end_ns = (to_readings_ns(event, energy) for event in find_epoch_edges(data.events)[row.epoch])
    readings = data.readings_of(None)
    series = list_channels(readings, energy).series
    found = missed_ticks(readings, series, start_ns, end_ns, round(energy.interval_ms * 1e6))
    return _make_check(row, "missed_ticks", expected, *_judge_ticks(bool(series), *found, tolerances))


def _judge_ticks(has_series: bool, missed: int, due: int, tolerances: Tolerances) -> tuple[str, str | bool]:
    if not has_series:
        return NO_SENSOR, NOT_APPLICABLE
    if not due:
        return "no tick in the epoch", NOT_APPLICABLE
    share = 100 * missed / due
    # One tick missed in a short epoch is over the share, yet the counters are cumulative: allow a single one.
    return f"{missed} of {due} ticks ({share:.1f} %)", share < tolerances.missed_ticks_pct or missed <= 1


def _check_host_ticks(data: CellData, row: EpochRow, tolerances: Tolerances, host: HostRecord) -> Check:
    start, end = find_epoch_edges(data.events)[row.epoch]
    series = {(one.device, one.domain, one.source) for one in host.series}
    span_ns = start["utc_ns"] + host.offset_ns, end["utc_ns"] + host.offset_ns
    found = missed_ticks(data.readings_of(host), series, *span_ns, round(host.interval_ms * 1e6))
    expected = f"< {tolerances.missed_ticks_pct:g} % of the ticks of host {host.host}"
    return _make_check(row, "missed_ticks", expected, *_judge_ticks(bool(series), *found, tolerances), host.host)


def _check_host_clock(row: EpochRow, tolerances: Tolerances, host: HostRecord) -> Check:
    """Judge a host's clock against the lead's; the offset itself is accounted for, its error is in the row's."""
    expected = f"< {tolerances.clock_offset_ms:g} ms between the clocks of host {host.host} and the lead"
    measured = (("before", host.clock_before), ("after", host.clock_after))
    actual = ", ".join(
        f"{when} {clock.offset_ms:+.3f} ± {clock.error_ms:.3f} ms ({clock.source})" for when, clock in measured
    )
    set_since = [event.message for event in host.events if event.kind == "clock-step"]
    if not set_since and all(clock.source == ONE_CLOCK for _, clock in measured):
        return _make_check(row, "clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE, host.host)
    fine = not set_since and all(abs(clock.offset_ms) < tolerances.clock_offset_ms for _, clock in measured)
    return _make_check(row, "clock_offset", expected, "; ".join([*set_since, actual]), fine, host.host)


def _check_sensors(data: CellData, row: EpochRow) -> Check:
    """Warn of what leaves the row's joules unknown; its times are no worse for it."""
    unread = [f"not readable: {u.device} {u.domain} ({u.reason})" for u in data.cell.energy.unreadable]
    unread += [f"lost: {event.message}" for event in _list_energy_events(data, row) if event.kind == "sensor-lost"]
    expected = "every part of the host that was found is read, or else its domain and the total are unknown"
    if not unread and not data.cell.energy.series:
        return _make_check(row, "sensors", expected, NO_SENSOR, NOT_APPLICABLE)
    return _warn(row, "sensors", expected, "; ".join(unread), "none unreadable")


def _check_agent(data: CellData, row: EpochRow) -> Check:
    """Warn of an agent that died: the row's joules are bridged by the counters, or empty."""
    expected = "the energy agent samples throughout"
    died = [event.message for event in _list_energy_events(data, row) if event.kind in ("agent-died", "agent-back")]
    if not died and not data.cell.energy.series:
        return _make_check(row, "energy_agent", expected, NO_SENSOR, NOT_APPLICABLE)
    return _warn(row, "energy_agent", expected, "; ".join(died), "it did")


def _warn(row: EpochRow, rule: str, expected: str, found: str, otherwise: str) -> Check:
    """Return a check that warns of a finding, where there is one."""
    return _make_check(row, rule, expected, found or otherwise, WARN if found else PASS)


def _list_energy_events(data: CellData, row: EpochRow) -> list[Event]:
    """Return the events that the energy agent reported within an epoch."""
    start_ns, end_ns = (to_readings_ns(event, data.cell.energy) for event in find_epoch_edges(data.events)[row.epoch])
    return [event for event in data.cell.energy.events if start_ns <= event.t_ns <= end_ns]


def _check_clock(data: CellData, row: EpochRow, tolerances: Tolerances) -> Check:
    """Judge the offset between the nodes' clocks; where both nodes are one machine there is one clock."""
    offset_ms = data.cell.clock_offset_ms
    # Cells of older runs store an offset of 0.0, which nothing measured, for their one clock.
    one_clock = data.cell.clock == ONE_CLOCK or offset_ms == 0.0
    expected = f"< {tolerances.clock_offset_ms:g} ms between the nodes' clocks"
    for event in _list_energy_events(data, row):
        if event.kind == "clock-step":
            return _make_check(row, "clock_offset", expected, event.message, FAIL)
    if one_clock:
        return _make_check(row, "clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE)
    if offset_ms is None:
        return _make_check(row, "clock_offset", expected, "not measured", UNKNOWN)
    return _make_check(row, "clock_offset", expected, f"{offset_ms:g} ms", abs(offset_ms) < tolerances.clock_offset_ms)


def _check_alone(data: CellData, row: EpochRow) -> Check:
    others = data.cell.other_runs
    found = f"{len(others)} other: {', '.join(others)}" if others else ""
    return _warn(row, "alone", "no other run on this machine: each counts the CPU joules of both", found, "none seen")


def _check_cpu_parts(data: CellData, row: EpochRow) -> Check:
    """Warn of processes that used more CPU than there was: the CPU's joules then leave too little for `other_j`."""
    expected = f"the run's processes use the CPU time of the processors, or at most {100 * MOST_EXCESS:g} % more"
    counted = {"": count_cpu_s(data.events, *find_epoch_edges(data.events)[row.epoch])}
    if data.cell.hosts:
        used = {host: epochs.get(row.epoch, {}) for host, epochs in data.cell.host_cpu_s.items()}
        counted = {f" on {host}": (parts.get("busy", 0.0), parts) for host, parts in used.items()}
    texts, found = [], []
    for where, (whole_s, parts) in counted.items():
        parts_s, excess_s = compute_cpu_excess(whole_s, parts)
        texts.append(f"{parts_s:.2f} s of {whole_s:.2f} s{where}")
        if excess_s > whole_s * MOST_EXCESS + ROUNDING_S:
            found.append(texts[-1])
    return _warn(row, "cpu_parts", expected, "; ".join(found), "; ".join(texts))


def _check_disturbance(data: CellData, row: EpochRow, tolerances: Tolerances) -> Iterable[Check]:
    """Judge what others took of the processors, and of a link how it carried pings meanwhile."""
    start, end = find_epoch_edges(data.events)[row.epoch]
    taken = measure_others(start, end)
    few = f"{tolerances.others_cpu_pct:g} % of the CPUs, at most {tolerances.others_cpus:g} of them"
    expected, stolen = f"CPU of others ≤ {few}", f"≤ {tolerances.steal_pct:g} % of the CPUs' time stolen"
    if taken is None:
        unseen = ("not counted: the run is from before it was", WARN)
        if all("cpu_at_s" in event for event in (start, end)):
            unseen = ("not measured: the kernel does not count what the processors do", UNKNOWN)
        yield _make_check(row, "others_cpu", expected, *unseen)
        yield _make_check(row, "steal", stolen, *unseen)
    else:
        capacity_s = taken.cpus * taken.span_s
        allowed_s = taken.span_s * min(taken.cpus * tolerances.others_cpu_pct / 100, tolerances.others_cpus)
        actual = f"{taken.cpu_s:.2f} s in {taken.span_s:.2f} s of {taken.cpus} CPUs"
        actual += f" ({100 * taken.cpu_s / capacity_s:.1f} %)"
        actual += "" if taken.wait_s is None else f", the run's threads waited {taken.wait_s:.2f} s for a CPU"
        yield _make_check(row, "others_cpu", expected, actual, taken.cpu_s <= allowed_s + ROUNDING_S)
        steal_s = capacity_s * tolerances.steal_pct / 100 + ROUNDING_S
        yield _make_check(row, "steal", stolen, f"{100 * taken.steal_s / capacity_s:.1f} %", taken.steal_s <= steal_s)
    if not (regime := data.cell.regime).is_local:
        yield from _check_pings(row, regime, summarize_pings(data, start, end), tolerances)


def _check_pings(row: EpochRow, regime: Regime, seen: LinkPings | None, tolerances: Tolerances) -> Iterable[Check]:
    paused = f"no packet held for more than {tolerances.link_pause_ms:g} ms"
    held = f"≤ {tolerances.link_held_pct:g} % of the pings held for more than {tolerances.link_held_ms:g} ms"
    if seen is None:
        for rule, expected in (("link_pause", paused), ("link_held", held)):
            yield _make_check(row, rule, expected, "not watched: the run is from before it was", WARN)
        return
    many = f"{seen.sent} pings of {seen.due}"
    if not seen.sent and seen.due <= 1:
        for rule, expected in (("link_pause", paused), ("link_held", held)):
            yield _make_check(row, rule, expected, "no ping in the epoch", NOT_APPLICABLE)
        return
    if seen.sent < seen.due // 2:
        yield _make_check(row, "link_held", held, many, UNKNOWN)
        return
    line = "" if seen.pause_ms is None else f", the delay line's own longest pause {seen.pause_ms:.0f} ms"
    longest = max(seen.held_ms, default=0.0)
    fine = seen.longest_ms <= tolerances.link_pause_ms
    yield _make_check(row, "link_pause", paused, f"a ping {longest:.0f} ms{line}", fine)
    slow = sum(one > tolerances.link_held_ms for one in seen.held_ms)
    # A single one is over the share of a short epoch, and says nothing of it.
    fine = slow <= 1 or 100 * slow <= tolerances.link_held_pct * seen.sent
    yield _make_check(row, "link_held", held, f"{slow} of {seen.sent}", fine)
    most = math.floor(seen.predict_lost(regime, CHANCE)) + 1
    yield _make_check(row, "pings_lost", f"≤ {most} of {seen.sent} pings lost", f"{seen.lost} lost", seen.lost <= most)


def _check_spread(rows: Sequence[EpochRow], tolerances: Tolerances) -> Iterable[Check]:
    """Warn of rows that lie apart; the first epoch of a cell, which starts workers, is compared with first epochs."""
    groups: dict[tuple[str, str, str, bool], list[EpochRow]] = defaultdict(list)
    settled = set(select_settled(rows))
    for row in rows:
        groups[row.loader, row.workload, row.regime, row in settled].append(row)
    for group in groups.values():
        times = [row.duration_s for row in group]
        expected = f"(max - min) / median < {tolerances.spread_pct:g} % over the repeats"
        for row in group:
            if len(times) < 2:
                yield _make_check(row, "spread", expected, "a single epoch of its kind", NOT_APPLICABLE)
                continue
            percent = 100 * (compute_spread(times) or 0.0)
            verdict = PASS if percent < tolerances.spread_pct else WARN
            yield _make_check(row, "spread", expected, f"{percent:.1f} % over {len(times)}", verdict)
