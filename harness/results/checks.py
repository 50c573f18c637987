"""The validity rules: each returns what it expected, what it found and a verdict; pure.

The same rules judge a run as it ends and a finished folder (`python -m harness.validate FOLDER`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from energymon import Event, missed_ticks
from harness.cell.events import CONTENT, CellEvent
from harness.cell.skipped import id_list, skipped_by_epoch
from harness.config.specs import Tolerances
from harness.results.attributed import compute_cpu_excess, count_cpu_s
from harness.results.cell_folder import CellData
from harness.results.cells import HostRecord
from harness.results.edges import (
    HostEdges,
    describe_held,
    find_epoch_edges,
    measure_early,
    measure_growth,
    measure_others,
    measure_set_up,
)
from harness.results.epoch_row import EpochRow, compute_spread, select_settled
from harness.results.make_rows import make_rank_rows, to_readings_ns
from harness.results.metrics import find_fastest_second, is_local, measure_storage_read, summarize_pings
from harness.system.heat import CAPPED, SLOWED
from harness.testbed.caches import DROPPED
from harness.testbed.link.measure.bounds import CHANCE, list_link_bounds
from harness.testbed.link.userspace.paths import PathCounters

# A warning is about a group of rows, or about joules alone. The rows stay valid.
PASS, WARN, FAIL, UNKNOWN, NOT_APPLICABLE = "pass", "warn", "fail", "unknown", "not applicable"
ONE_CLOCK = "one clock"
"""What a cell stores as its clock when both nodes are this machine."""
READS_ONCE = "one batch, made before the epoch: nothing is read"
NO_SENSOR = "no sensor"
_OF_HOST = ("missed_ticks", "clock_offset")
RULES = frozenset(
    {
        *("rtt_before", "rtt_after", "rate_before", "rate_after", "jitter_before", "jitter_after"),
        *("loss_to_compute_before", "loss_to_compute_after", "loss_to_storage_before", "loss_to_storage_after"),
        *("no_drops", "link_pause", "link_held", "pings_lost", "paths", "bytes_received", "local_bytes"),
        *("exactly_once", "loader_bytes", "labels", "shuffled", "early_work", "others_cpu", "steal", "alone", "spread"),
        *("content", "local_reads", "setup_work", "step_time"),
        *("cpu_parts", "sensors", "energy_agent", "meters", *_OF_HOST, *(f"{rule}_HOST" for rule in _OF_HOST)),
        *("link_in_epoch", "throttled", "pressure_memory", "pressure_io", "slowdown", "frequency"),
    }
)
"""Names of the rules; HOST stands for the name of another host."""
RULES_EDITION = 3
"""Rises when a rule is added, left out or judges otherwise, or when a default tolerance changes."""
FEW = 64
"""Samples below which two epochs may have the same order by chance: a loader may shuffle runs of several."""
EARLY_BYTES = 2**16
"""Bytes that keep-alives and the end of the epoch before may take, however few an epoch's own are."""
OVERHEAD = 0.15
"""Share of the samples' bytes that protocols, padding and packets sent again may add on the data interface: 0.002 to
0.02 are usual, and 0.05 where an interface counts the headers of small packets."""
OVERHEAD_BYTES = 2**20
"""What they may add besides, as may `SAMPLE_OVERHEAD_BYTES` for each sample: attributes of its file, or its query."""
SAMPLE_OVERHEAD_BYTES = 4096
LEAST_READ = 0.9
"""Share of its bytes that a cold epoch of local samples reads from disks: whole pages, so that 1 is usual."""
MOST_EXCESS = 0.03
"""Share of a host's CPU seconds by which the CPU seconds of the run's processes there may exceed them."""
NOT_MEASURED = "not measured: by a version without this rule"
NO_PRESSURE = "this kernel does not count it"
FEW_DISK_BYTES = 16e6
"""What others may move on disks in an epoch, however little the run moves: logs, and pages that are written late."""
NAMED = 3
"""Processes of others that a check names."""
SCATTERS = 3
"""Scatters of a fixed piece of work within 40 ms by which its time may change: on a host that is shared the speed
follows the other guests."""
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
    """pass, warn, fail, unknown (something that it needs was not measured) or not applicable."""

    @property
    def refuses(self) -> bool:
        """Whether its row is invalid."""
        return self.verdict in (FAIL, UNKNOWN)


def judge(
    cells: Sequence[CellData], rows: Sequence[EpochRow], tolerances: Tolerances
) -> tuple[list[EpochRow], list[Check]]:
    """Return the rows with their verdicts, and every check."""
    data = {c.cell.cell_id: c for c in cells}
    checks = [check for row in rows for check in _check_row(_JudgedEpoch.of(data[row.cell_id], row, tolerances))]
    checks += _check_spread(rows, tolerances)
    failed: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for check in checks:
        if check.refuses:
            failed[check.cell_id, check.epoch].append(f"{check.rule} ({check.actual}, expected {check.expected})")
    judged = []
    for row in rows:
        reasons = failed[row.cell_id, row.epoch]
        judged.append(replace(row, valid="invalid: " + "; ".join(reasons) if reasons else "valid"))
    return judged, checks


@dataclass(frozen=True, slots=True)
class _JudgedEpoch:
    """An epoch that is judged: its row, and what the row is judged by."""

    row: EpochRow
    data: CellData
    limits: Tolerances
    start: CellEvent
    end: CellEvent
    hosts: Sequence[HostEdges]

    @classmethod
    def of(cls, data: CellData, row: EpochRow, limits: Tolerances) -> _JudgedEpoch:
        """Return the epoch of a row."""
        edges = find_epoch_edges(data.events)[row.epoch]
        return cls(row, data, limits, *edges, data.list_host_edges(row.epoch))

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The sample ids that came, in their order."""
        return self.data.batches[self.row.epoch].ids

    @property
    def span_s(self) -> float:
        """The epoch's length, s, as its counters saw it."""
        return float(self.end.get("cpu_at_s", 0.0) - self.start.get("cpu_at_s", 0.0)) or self.row.duration_s

    def check(self, rule: str, expected: str, actual: str, verdict: str | bool, host: str | None = None) -> Check:
        """Return a rule's result; a verdict of True is `pass`, and False is `fail`."""
        return _make_check(self.row, rule, expected, actual, verdict, host)

    def warn(self, rule: str, expected: str, found: str, otherwise: str) -> Check:
        """Return a check that warns of a finding, where there is one."""
        return self.check(rule, expected, found or otherwise, WARN if found else PASS)

    def check_count(
        self, rule: str, expected: str, found: int | None, unit: str, allowed: tuple[float, float]
    ) -> Check:
        """Judge a count by the least and the most that is allowed."""
        if found is None:
            return self.check(rule, expected, "not measured", UNKNOWN)
        return self.check(rule, expected, f"{found} {unit}", allowed[0] <= found <= allowed[1])

    def list_energy_events(self) -> list[Event]:
        """Return the events that the energy agent reported within the epoch."""
        energy = self.data.cell.energy
        start_ns, end_ns = to_readings_ns(self.start, energy), to_readings_ns(self.end, energy)
        return [event for event in energy.events if start_ns <= event.t_ns <= end_ns]


def _make_check(
    row: EpochRow, rule: str, expected: str, actual: str, verdict: str | bool, host: str | None = None
) -> Check:
    assert (rule if host is None else f"{rule}_HOST") in RULES
    if isinstance(verdict, bool):
        verdict = PASS if verdict else FAIL
    return Check(row.cell_id, row.epoch, rule if host is None else f"{rule}_{host}", expected, actual, verdict)


def _check_row(epoch: _JudgedEpoch) -> Iterable[Check]:
    yield from _check_link(epoch)
    yield from _check_samples(epoch)
    yield _check_early_work(epoch)
    yield _check_step_time(epoch)
    yield _check_setup_work(epoch)
    yield _check_local_reads(epoch)
    yield _check_ticks(epoch)
    for host in epoch.data.cell.hosts:
        yield _check_ticks(epoch, host)
        yield _check_host_clock(epoch, host)
    yield from _check_energy(epoch)
    yield _check_clock(epoch)
    yield _check_alone(epoch)
    yield _check_cpu_parts(epoch)
    yield from _check_others(epoch)
    yield from _check_pings(epoch)
    yield from _check_link_in_epoch(epoch)
    yield from _check_disturbances(epoch)


def _check_samples(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge which samples came, and in which order. A loader that reads nothing in an epoch is not judged by them."""
    received = [] if epoch.data.cell.regime.is_local else _check_bytes(epoch)
    checks = [_check_exactly_once(epoch), _check_loader_bytes(epoch), _check_labels(epoch), _check_shuffled(epoch)]
    checks.append(_check_content(epoch))
    for check in [*received, *checks]:
        yield replace(check, actual=READS_ONCE, verdict=NOT_APPLICABLE) if epoch.data.cell.reads == "once" else check


def _check_link(epoch: _JudgedEpoch) -> Iterable[Check]:
    link, regime = epoch.data.link, epoch.data.cell.regime
    if regime.is_local:
        return
    for when, probe in (("before", link.before), ("after", link.after)):
        for bound in list_link_bounds(regime, probe, epoch.limits):
            rule = f"{bound.rule}_{when}"
            if bound.found is None:
                yield epoch.check(rule, bound.expected, "not measured", UNKNOWN)
            else:
                pair = f" between {probe.pair}" if probe and probe.pair and bound.rule == "rtt" else ""
                earlier = f", in probe {len(probe.earlier) + 1}" if probe and probe.earlier else ""
                yield epoch.check(rule, bound.expected, f"{bound.found:.3g} {bound.unit}{pair}{earlier}", bound.kept)
    carried = link.get_epoch(epoch.row.epoch)
    if regime.loss_pct == 0:
        expected = "0 packets dropped in the link's queue"
        yield epoch.check_count("no_drops", expected, carried.drops, "dropped", (0, 0))
    if regime.paths:
        yield _check_paths(epoch, len(regime.paths), carried.paths)


def _check_paths(epoch: _JudgedEpoch, asked: int, found: Sequence[PathCounters]) -> Check:
    """Show what each path carried; a loader with fewer connections than the regime has paths leaves some out."""
    expected = f"each of {asked} paths carries part of the epoch"
    if len(found) != asked:
        return epoch.check("paths", expected, "not measured", UNKNOWN)
    actual = "; ".join(
        f"{path.bytes / 1e6:.3g} MB over {path.connections} connection{'' if path.connections == 1 else 's'}"
        + (f" ({path.lost} packets lost, {path.drops} dropped)" if path.lost or path.drops else "")
        for path in found
    )
    return epoch.check("paths", expected, actual, PASS if all(path.connections for path in found) else WARN)


def _check_bytes(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge what came over the link: all samples that are stored beyond it, and none that are stored here."""
    if epoch.data.cell.ranks:
        yield _check_bytes_by_node(epoch)
        return
    placement, whole = epoch.data.cell.placement, epoch.row.bytes
    received = epoch.data.link.get_epoch(epoch.row.epoch).rx_bytes
    needed = whole if placement.kind == "remote" else placement.remote_bytes
    share = "" if needed == whole else f" of {whole}"
    samples = len(epoch.ids) if needed == whole else placement.remote_samples
    # What a declared policy leaves out has crossed the link too.
    told = skipped_by_epoch(epoch.data.events).get(epoch.row.epoch)
    sizes = epoch.data.sizes
    skipped = sum(int(sizes[one]) for one in (told.samples if told else ()) if 0 <= one < len(sizes))
    most = round((needed + skipped) * (1 + OVERHEAD)) + samples * SAMPLE_OVERHEAD_BYTES + OVERHEAD_BYTES
    expected = f"{needed} to {most}{share} bytes on the data interface (no hidden cache, and nothing else)"
    if needed:
        yield epoch.check_count("bytes_received", expected, received, "bytes", (needed, most))
    else:
        yield epoch.check("bytes_received", expected, "no sample lies beyond the link", NOT_APPLICABLE)
    if share:
        most = needed + (whole - needed) // 2
        expected = f"≤ {most} bytes on the data interface (what lies on the compute node stays there)"
        yield epoch.check_count("local_bytes", expected, received, "bytes", (0, most))


def _check_bytes_by_node(epoch: _JudgedEpoch) -> Check:
    """Judge what each node received: its ranks' samples from elsewhere, and the gradients of the other nodes."""
    needed: dict[str, int] = defaultdict(int)
    received: dict[str, int | None] = {}
    for rank in make_rank_rows(epoch.data):
        if rank.epoch == epoch.row.epoch:
            record = epoch.data.cell.ranks[rank.rank]
            least = next(one for one in record.epochs if one.epoch == rank.epoch)
            needed[rank.address] += least.remote_bytes + least.gradient_bytes
            received[rank.address] = rank.rx_bytes
    expected = ", ".join(f"≥ {count} bytes at {address}" for address, count in needed.items())
    actual = ", ".join(f"{'unknown' if count is None else count} at {address}" for address, count in received.items())
    known = {address: count for address, count in received.items() if count is not None}
    verdict = UNKNOWN if len(known) < len(received) else all(known[one] >= count for one, count in needed.items())
    if not any(needed.values()):
        verdict = NOT_APPLICABLE
    return epoch.check("bytes_received", f"{expected} (samples that lie elsewhere, and gradients)", actual, verdict)


def _check_exactly_once(epoch: _JudgedEpoch) -> Check:
    """Judge the ids that came. Samples that the loader's declared policy left out are counted, and need not come."""
    cell, ids = epoch.data.cell, epoch.ids
    n = cell.dataset.samples
    inside = ids[(ids >= 0) & (ids < n)]
    seen = np.bincount(inside, minlength=n)
    absent, repeated = np.flatnonzero(seen == 0).tolist(), int((seen > 1).sum())
    strange = len(ids) - len(inside)
    over = f" over {len(cell.ranks)} ranks" if cell.ranks else ""
    expected, actual = f"each of {n} samples once{over}", ""
    told = skipped_by_epoch(epoch.data.events).get(epoch.row.epoch) if cell.on_error == "skip" else None
    left_out = [] if told is None else [sample_id for sample_id in absent if sample_id in told.samples]
    miscounted = told is not None and told.count != len(left_out)
    if told is not None:
        expected += ", or skipped by policy (on_error=skip)"
        actual = f"{len(left_out)} skipped by policy ({id_list(left_out)})" if left_out else "0 skipped by policy"
        actual += f" where the loader counted {told.count}, " if miscounted else ", "
    missing = len(absent) - len(left_out)
    actual += f"{missing} missing, {repeated} repeated, {strange} unknown"
    return epoch.check("exactly_once", expected, actual, not (missing or repeated or strange or miscounted))


def _check_loader_bytes(epoch: _JudgedEpoch) -> Check:
    """Judge the bytes that the loader counts by the sizes of the samples that came."""
    expected = "the loader counts the bytes of its samples, as samples.parquet has them"
    counted, whole = int(epoch.data.batches[epoch.row.epoch].nbytes.sum()), epoch.row.bytes
    return epoch.check("loader_bytes", expected, f"{counted} of {whole} bytes", counted == whole)


def _check_labels(epoch: _JudgedEpoch) -> Check:
    """Judge the labels that came by those of the dataset. A loader that decodes nothing may bring the right ids."""
    expected = "each sample with its label, as samples.parquet has them"
    came, right, ids = epoch.data.batches[epoch.row.epoch].labels, epoch.data.labels, epoch.ids
    if came is None:
        return epoch.check("labels", expected, "not kept: no classes", NOT_APPLICABLE)
    if len(came) != len(ids):
        return epoch.check("labels", expected, "batches with labels other than a whole number a sample", UNKNOWN)
    known = (ids >= 0) & (ids < len(right))
    ids, came = ids[known], came[known]
    wrong = np.flatnonzero(came != right[ids])
    actual = f"{len(wrong)} of {len(ids)} wrong"
    if len(wrong):
        sample_id = ids[wrong[0]]
        actual += f", the first of them {came[wrong[0]]} where sample {sample_id} has {right[sample_id]}"
    return epoch.check("labels", expected, actual, not len(wrong))


def _check_content(epoch: _JudgedEpoch) -> Check:
    """Judge the samples that the cell's ranks chose at random and compared with what the pipeline makes of them."""
    expected = "samples chosen at random are what the pipeline makes of their files"
    events = [one for one in epoch.data.events if one["event"] in (CONTENT, f"rank.{CONTENT}")]
    found = [one for one in events if one["epoch"] == epoch.row.epoch]
    if not events:
        return epoch.check("content", expected, "not compared: by a version without this rule", WARN)
    if len(found) < max(1, len(epoch.data.cell.ranks)):
        return epoch.check("content", expected, "not compared", UNKNOWN)
    count, wrong = sum(len(one["compared"]) for one in found), [each for one in found for each in one["wrong"].items()]
    if wrong:
        sample_id, why = wrong[0]
        return epoch.check("content", expected, f"{len(wrong)} of {count} wrong: of sample {sample_id}, {why}", FAIL)
    if not count:
        return epoch.check("content", expected, next(one["reason"] for one in found), NOT_APPLICABLE)
    by_form = "; their random numbers are not the pipeline's, so that copies and constants alone are found"
    return epoch.check("content", expected, f"{count} compared{by_form * any(one['by_form'] for one in found)}", PASS)


def _check_shuffled(epoch: _JudgedEpoch) -> Check:
    """Judge whether an earlier epoch had the same order. Few samples may have it again by chance."""
    expected = "an order of samples that no earlier epoch of the cell had"
    batches = epoch.data.batches
    earlier = [one for one in batches if one < epoch.row.epoch]
    if not earlier:
        return epoch.check("shuffled", expected, "the first epoch of the cell", NOT_APPLICABLE)
    same = [one for one in earlier if np.array_equal(batches[one].ids, epoch.ids)]
    if not same:
        return epoch.check("shuffled", expected, "its own", PASS)
    return epoch.check("shuffled", expected, f"that of epoch {same[0]}", WARN if len(epoch.ids) < FEW else FAIL)


def _check_early_work(epoch: _JudgedEpoch) -> Check:
    """Judge what the loader received and computed before the epoch's clock began, without the set-up of the cell."""
    limits, cell = epoch.limits, epoch.data.cell
    few = f"{limits.early_bytes_pct:g} % of the epoch's bytes and {limits.early_cpu_pct:g} % of its CPU seconds"
    expected = f"at most {few} between set-up or the epoch before and the epoch's clock"
    early = measure_early(epoch.data.events, epoch.row.epoch)
    if early.cpu_s is None or early.epoch_cpu_s is None or (early.rx_bytes is None and not cell.regime.is_local):
        return epoch.check("early_work", expected, "not measured", UNKNOWN)
    most_bytes = max(EARLY_BYTES, epoch.row.bytes * limits.early_bytes_pct / 100)
    most_s = max(limits.early_cpu_s * max(1, len(cell.ranks)), early.epoch_cpu_s * limits.early_cpu_pct / 100)
    received = "" if early.rx_bytes is None else f"{early.rx_bytes} of {epoch.row.bytes} bytes, "
    actual = f"{received}{early.cpu_s:.2f} s of CPU beside {early.epoch_cpu_s:.2f} s in the epoch"
    fine = (early.rx_bytes or 0) <= most_bytes and early.cpu_s <= most_s
    return epoch.check("early_work", expected, actual, fine)


def _check_step_time(epoch: _JudgedEpoch) -> Check:
    """Judge how long emulated steps took: the median step, and all of them, so that a few long ones are seen too."""
    limit_pct, stretch = epoch.limits.step_pct, epoch.data.batches[epoch.row.epoch].stretch
    expected = f"emulated steps within {limit_pct:g} % of their nominal time: the median, and all together"
    if stretch is None:
        return epoch.check("step_time", expected, "no step is emulated", NOT_APPLICABLE)
    actual = f"the median {100 * stretch[0]:+.2f} %, all {100 * stretch[1]:+.2f} %"
    return epoch.check("step_time", expected, actual, max(map(abs, stretch)) <= limit_pct / 100)


def _check_setup_work(epoch: _JudgedEpoch) -> Check:
    """Warn of a loader that received or computed much before its first epoch, where no clock runs."""
    percent = epoch.limits.setup_pct
    expected = f"set-up takes at most {percent:g} % of the epoch's CPU seconds, and of its bytes"
    work = measure_set_up(epoch.data.events, epoch.row.epoch)
    if epoch.data.cell.reads == "once":
        return epoch.check("setup_work", expected, READS_ONCE, NOT_APPLICABLE)
    if epoch.row.epoch != min(epoch.data.batches):
        return epoch.check("setup_work", expected, "not the first epoch of the cell", NOT_APPLICABLE)
    if work.cpu_s is None or work.epoch_cpu_s is None:
        return epoch.check("setup_work", expected, "not measured: by a version without this rule", WARN)
    most_s = max(epoch.limits.early_cpu_s * max(1, len(epoch.data.cell.ranks)), work.epoch_cpu_s * percent / 100)
    stated = epoch.data.cell.stats.get("padding_bytes")
    # Each of the ranks of a node asks for its own.
    padding = int(stated) * max(1, len(epoch.data.cell.ranks)) if isinstance(stated, int | float) else 0
    most_bytes = max(EARLY_BYTES, epoch.row.bytes * percent / 100) + padding * (1 + OVERHEAD)
    actual = f"{work.cpu_s:.2f} s of CPU beside {work.epoch_cpu_s:.2f} s in the epoch"
    if work.rx_bytes is not None:
        actual += f", {work.rx_bytes} of {epoch.row.bytes} bytes"
        actual += f", {padding} of them padding that the loader asked for" if padding else ""
    is_small = work.cpu_s <= most_s and (work.rx_bytes or 0) <= most_bytes
    return epoch.check("setup_work", expected, actual, PASS if is_small else WARN)


def _check_local_reads(epoch: _JudgedEpoch) -> Check:
    """Judge whether an epoch of local samples, before which caches were dropped, read them from the disk."""
    expected = f"≥ {LEAST_READ:g} of the samples' bytes read from disks, for caches were dropped before the epoch"
    data, cell = epoch.data, epoch.data.cell
    read, needed = measure_storage_read(data, epoch.start, epoch.end), data.count_bytes(epoch.row.epoch)
    is_first = epoch.row.epoch == min(data.batches)
    why_not = {
        "samples lie beyond a link": not is_local(data),
        READS_ONCE: cell.reads == "once",
        "caches were not dropped": not cell.caches or not (is_first or cell.cold == "epoch"),
        f"caches were dropped in part: {cell.caches}": cell.caches != DROPPED,
        "reads were not counted": read is None,
        "the files are on no disk whose reads the kernel counts": not cell.on_disk
        and (read or 0) < LEAST_READ * needed,
    }
    for reason, applies in why_not.items():
        if applies:
            return epoch.check("local_reads", expected, reason, NOT_APPLICABLE)
    assert read is not None
    actual = f"{read} of {needed} bytes ({read / max(1, needed):.2f})"
    return epoch.check("local_reads", expected, actual, read >= LEAST_READ * needed)


def _check_ticks(epoch: _JudgedEpoch, host: HostRecord | None = None) -> Check:
    """Judge how many ticks the energy agent of a host missed; by default of the host that drives the run."""
    energy = host or epoch.data.cell.energy
    expected = f"< {epoch.limits.missed_ticks_pct:g} % of the ticks" + (f" of host {host.host}" if host else "")
    # A meter at the wall is asked once a second, whatever the ticks.
    series = frozenset((one.device, one.domain, one.source) for one in energy.series if one.domain != "wall")
    span_ns = to_readings_ns(epoch.start, energy), to_readings_ns(epoch.end, energy)
    missed, due = missed_ticks(epoch.data.readings_of(host), series, *span_ns, round(energy.interval_ms * 1e6))
    share = 100 * missed / max(1, due)
    actual = f"{missed} of {due} ticks ({share:.1f} %)"
    # One tick missed in a short epoch is over the share, yet the counters are cumulative: allow a single one.
    verdict: str | bool = share < epoch.limits.missed_ticks_pct or missed <= 1
    if not series or not due:
        actual, verdict = "no tick in the epoch" if series else NO_SENSOR, NOT_APPLICABLE
    return epoch.check("missed_ticks", expected, actual, verdict, None if host is None else host.host)


def _check_host_clock(epoch: _JudgedEpoch, host: HostRecord) -> Check:
    """Judge a host's clock by the lead's. Rows account for the offset, and error bounds for the offset's error."""
    limit_ms = epoch.limits.clock_offset_ms
    expected = f"< {limit_ms:g} ms between the clocks of host {host.host} and the lead"
    measured = (("before", host.clock_before), ("after", host.clock_after))
    actual = ", ".join(
        f"{when} {clock.offset_ms:+.3f} ± {clock.error_ms:.3f} ms ({clock.source})" for when, clock in measured
    )
    set_since = [event.message for event in host.events if event.kind == "clock-step"]
    if not set_since and all(clock.source == ONE_CLOCK for _, clock in measured):
        return epoch.check("clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE, host.host)
    fine = not set_since and all(abs(clock.offset_ms) < limit_ms for _, clock in measured)
    return epoch.check("clock_offset", expected, "; ".join([*set_since, actual]), fine, host.host)


def _check_energy(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge whether sources agree. Warn of lost sensors and of an agent that died, which leave times as they are."""
    energy, events = epoch.data.cell.energy, epoch.list_energy_events()
    unread = [f"not readable: {one.device} {one.domain} ({one.reason})" for one in energy.unreadable]
    unread += [f"lost: {event.message}" for event in events if event.kind == "sensor-lost"]
    unread += _list_resonances(epoch)
    died = [event.message for event in events if event.kind in ("agent-died", "agent-back")]
    alike = "sources of the same joules, and parts and their whole, differ by no more than their bounds and 10 %"
    unlike = epoch.row.disagreements
    if energy.series or epoch.data.cell.hosts:
        yield epoch.check("meters", alike, unlike or "none contradicts another", not unlike)
    else:
        yield epoch.check("meters", alike, NO_SENSOR, NOT_APPLICABLE)
    every = "every part of the host that was found is read, or else its domain and the total are unknown; "
    every += "no sensor that samples a part of the time resonates with the steps"
    for rule, expected, found, otherwise in (
        ("sensors", every, unread, "none unreadable"),
        ("energy_agent", "the energy agent samples throughout", died, "it did"),
    ):
        if not found and not energy.series:
            yield epoch.check(rule, expected, NO_SENSOR, NOT_APPLICABLE)
        else:
            yield epoch.warn(rule, expected, "; ".join(found), otherwise)


def _list_resonances(epoch: _JudgedEpoch) -> list[str]:
    """List the series that are summed and whose sensor may see all steps of the epoch at one phase."""
    row, ranks = epoch.row, epoch.data.batches[epoch.row.epoch].of_ranks()
    period_s = row.duration_s / max(1, len(ranks[0].step_s))
    return [
        f"{one.device} {one.source} {how}"
        for one in epoch.data.cell.energy.series
        if one.accuracy is not None and f"{one.domain}={one.source}" in row.energy_source.split(";")
        if (how := one.accuracy.resonance(period_s, row.duration_s))
    ]


def _check_clock(epoch: _JudgedEpoch) -> Check:
    """Judge the offset between the nodes' clocks; where both nodes are one machine there is one clock."""
    offset_ms, limit_ms = epoch.data.cell.clock_offset_ms, epoch.limits.clock_offset_ms
    expected = f"< {limit_ms:g} ms between the nodes' clocks"
    for event in epoch.list_energy_events():
        if event.kind == "clock-step":
            return epoch.check("clock_offset", expected, event.message, FAIL)
    if epoch.data.cell.clock == ONE_CLOCK:
        return epoch.check("clock_offset", expected, ONE_CLOCK, NOT_APPLICABLE)
    if offset_ms is None:
        return epoch.check("clock_offset", expected, "not measured", UNKNOWN)
    return epoch.check("clock_offset", expected, f"{offset_ms:g} ms", abs(offset_ms) < limit_ms)


def _check_alone(epoch: _JudgedEpoch) -> Check:
    others = epoch.data.cell.other_runs
    found = f"{len(others)} other: {', '.join(others)}" if others else ""
    expected = "no other run on this machine: each counts the CPU joules of both"
    return epoch.warn("alone", expected, found, "none seen")


def _check_cpu_parts(epoch: _JudgedEpoch) -> Check:
    """Warn of processes that used more CPU than there was: the CPU's joules then leave too little for `other_j`."""
    expected = f"the run's processes use the CPU time of the processors, or at most {100 * MOST_EXCESS:g} % more"
    data = epoch.data
    counted = {"": count_cpu_s(data.events, epoch.start, epoch.end)}
    if data.cell.hosts:
        used = {host: epochs.get(epoch.row.epoch, {}) for host, epochs in data.cell.host_cpu_s.items()}
        counted = {f" on {host}": (parts.get("busy", 0.0), parts) for host, parts in used.items()}
    texts, found = [], []
    for where, (whole_s, parts) in counted.items():
        parts_s, excess_s = compute_cpu_excess(whole_s, parts)
        texts.append(f"{parts_s:.2f} s of {whole_s:.2f} s{where}")
        if excess_s > whole_s * MOST_EXCESS + ROUNDING_S:
            found.append(texts[-1])
    return epoch.warn("cpu_parts", expected, "; ".join(found), "; ".join(texts))


def _check_others(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge how much of the processors others took."""
    limits, taken = epoch.limits, measure_others(epoch.start, epoch.end)
    expected = f"CPU of others ≤ {limits.others_cpu_pct:g} % of the CPUs, at most {limits.others_cpus:g} of them"
    stolen = f"≤ {limits.steal_pct:g} % of the CPUs' time stolen"
    if taken is None:
        for rule, text in (("others_cpu", expected), ("steal", stolen)):
            actual = "not measured: the kernel does not count what the processors do"
            yield epoch.check(rule, text, actual, UNKNOWN)
        return
    capacity_s = taken.cpus * taken.span_s
    allowed_s = taken.span_s * min(taken.cpus * limits.others_cpu_pct / 100, limits.others_cpus)
    actual = f"{taken.cpu_s:.2f} s in {taken.span_s:.2f} s of {taken.cpus} CPUs"
    actual += f" ({100 * taken.cpu_s / capacity_s:.1f} %)"
    actual += "" if taken.wait_s is None else f", the run's threads waited {taken.wait_s:.2f} s for a CPU"
    actual += "".join(f"; {name} (process {pid}) used {used_s:.2f} s" for name, pid, used_s in taken.busiest[:NAMED])
    yield epoch.check("others_cpu", expected, actual, taken.cpu_s <= allowed_s + ROUNDING_S)
    steal_s = capacity_s * limits.steal_pct / 100 + ROUNDING_S
    yield epoch.check("steal", stolen, f"{100 * taken.steal_s / capacity_s:.1f} %", taken.steal_s <= steal_s)


def _check_pings(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge how a link carried pings within the epoch."""
    limits, regime = epoch.limits, epoch.data.cell.regime
    if regime.is_local:
        return
    paused = f"no packet held for more than {limits.link_pause_ms:g} ms"
    held = f"≤ {limits.link_held_pct:g} % of the pings held for more than {limits.link_held_ms:g} ms"
    seen = summarize_pings(epoch.data, epoch.start, epoch.end)
    if seen is None:
        yield epoch.check("link_held", held, "not watched", UNKNOWN)
        return
    if not seen.sent and seen.due <= 1:
        for rule, expected in (("link_pause", paused), ("link_held", held)):
            yield epoch.check(rule, expected, "no ping in the epoch", NOT_APPLICABLE)
        return
    if seen.sent < seen.due // 2:
        yield epoch.check("link_held", held, f"{seen.sent} pings of {seen.due}", UNKNOWN)
        return
    line = "" if seen.pause_ms is None else f", the delay line's own longest pause {seen.pause_ms:.0f} ms"
    longest = max(seen.held_ms, default=0.0)
    fine = seen.longest_ms <= limits.link_pause_ms
    yield epoch.check("link_pause", paused, f"a ping {longest:.0f} ms{line}", fine)
    slow = sum(one > limits.link_held_ms for one in seen.held_ms)
    # In a short epoch a single slow ping is over the share, and shows nothing.
    fine = slow <= 1 or 100 * slow <= limits.link_held_pct * seen.sent
    yield epoch.check("link_held", held, f"{slow} of {seen.sent}", fine)
    most = math.floor(seen.predict_lost(regime, CHANCE)) + 1
    yield epoch.check("pings_lost", f"≤ {most} of {seen.sent} pings lost", f"{seen.lost} lost", seen.lost <= most)


def _check_link_in_epoch(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge whether the link was as far as its regime while the epoch used it, and no faster."""
    limits, regime = epoch.limits, epoch.data.cell.regime
    if regime.is_local:
        return
    seen = summarize_pings(epoch.data, epoch.start, epoch.end)
    allowed_ms = max(limits.link_epoch_ms, regime.rtt_ms * limits.link_epoch_pct / 100)
    # What the delay line itself was late by, which is the host's doing, is in no bound but that of `link_pause`.
    late_ms = allowed_ms + 2 * (seen.pause_ms or 0.0 if seen else 0.0)
    expected = (
        f"half of the pings within {allowed_ms:.2g} ms of the round trip, and 95 % at most {late_ms:.2g} ms later"
    )
    if epoch.data.cell.reads == "once":
        yield epoch.check("link_in_epoch", expected, READS_ONCE, NOT_APPLICABLE)
        return
    if seen is None or not seen.held_ms:
        yield epoch.check("link_in_epoch", expected, "no ping in the epoch", NOT_APPLICABLE if seen else UNKNOWN)
        return
    median_ms, p95_ms = (float(value) for value in np.percentile(seen.held_ms, (50, 95)))
    # In a short epoch a single late ping is half of them or 5 %, and shows nothing.
    far, slow = (sum(one > limit_ms for one in seen.held_ms) for limit_ms in (allowed_ms, late_ms))
    actual = f"median {median_ms:.2g} ms and 95 % {p95_ms:.2g} ms later, at most {seen.nearer_ms:.2g} ms nearer"
    fine = seen.nearer_ms <= allowed_ms and (far <= 1 or median_ms <= allowed_ms) and (slow <= 1 or p95_ms <= late_ms)
    fastest = find_fastest_second(epoch.data, epoch.start, epoch.end)
    if fastest is not None and regime.rate_gbit is not None:
        cell = epoch.data.cell
        # The rate is that of each host that sends: a storage host, or another one whose ranks send gradients.
        senders = max(1, cell.placement.storages) + max(0, len({one.address for one in cell.ranks}) - 1)
        most = senders * regime.rate_gbit * (1 + limits.rate_pct / 100)
        expected += f", ≤ {most:.3g} Gbit/s in a second"
        actual += f", up to {fastest:.2g} Gbit/s"
        fine = fine and fastest <= most
    yield epoch.check("link_in_epoch", expected, actual, fine)


def _check_hosts(
    epoch: _JudgedEpoch,
    rule: str,
    expected: str,
    key: str,
    judge: Callable[[_JudgedEpoch, HostEdges], tuple[str, str | bool]],
) -> Check:
    """Judge each host by its edges, which have `key` if it was measured; the gravest verdict names its hosts."""
    found: dict[str, list[str]] = defaultdict(list)
    for edges in epoch.hosts:
        actual, verdict = judge(epoch, edges) if key in edges.end else (NOT_MEASURED, WARN)
        verdict = verdict if isinstance(verdict, str) else PASS if verdict else FAIL
        found[verdict].append(f"{actual} on {edges.host}" if edges.host else actual)
    gravest = next(one for one in (FAIL, UNKNOWN, WARN, PASS, NOT_APPLICABLE) if one in found)
    return epoch.check(rule, expected, "; ".join(found[gravest]), gravest)


def _check_disturbances(epoch: _JudgedEpoch) -> Iterable[Check]:
    """Judge what beside the run's own processes stopped or slowed the hosts."""
    limits = epoch.limits
    quotas = f"CPU quotas of control groups stop the run for ≤ {limits.throttled_pct:g} % of the epoch"
    yield _check_hosts(epoch, "throttled", quotas, "throttled", _judge_quotas)
    memory = f"tasks wait for memory for ≤ {limits.pressure_pct:g} %, ≤ {limits.swapped_mb:g} MB read from swap"
    yield _check_hosts(epoch, "pressure_memory", memory, "memory_wait_s", _judge_memory)
    disks = f"tasks wait for disks for ≤ {limits.pressure_pct:g} %, or the run itself moves most of the bytes"
    yield _check_hosts(epoch, "pressure_io", disks, "disk_wait_s", _judge_disks)
    clocks = f"heat and hardware hold clocks back for ≤ {limits.slowed_pct:g} % of the epoch"
    clocks += f", power limits for ≤ {limits.capped_pct:g} %" if limits.capped_pct < 100 else ""
    yield _check_hosts(epoch, "slowdown", clocks, "devices", _judge_clocks)
    yield _check_frequency(epoch)


def _judge_quotas(epoch: _JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
    """Judge for how long a CPU quota stopped the run: it is idle meanwhile, and no rule on others sees it."""
    if edges.start["throttled"] is None and edges.end["throttled"] is None:
        return "no control group of the run can have a quota", NOT_APPLICABLE
    times, stopped_s = (measure_growth(edges.start, edges.end, key) for key in ("throttled", "throttled_s"))
    if times is None or stopped_s is None:
        return "the control groups changed", UNKNOWN
    is_kept = 100 * stopped_s <= epoch.limits.throttled_pct * epoch.span_s
    return f"{stopped_s:.2f} s in {epoch.span_s:.2f} s, {times} times", is_kept


def _judge_memory(epoch: _JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
    """Judge for how long tasks waited for memory."""
    limits, cell = epoch.limits, epoch.data.cell
    waited_s, swapped = (measure_growth(edges.start, edges.end, key) for key in ("memory_wait_s", "swapped_in_bytes"))
    if waited_s is None and swapped is None:
        return NO_PRESSURE, NOT_APPLICABLE
    waited = "time unknown" if waited_s is None else f"{100 * waited_s / epoch.span_s:.1f} %"
    actual = f"{waited}, {(swapped or 0) / 1e6:.1f} MB"
    most_s = epoch.span_s * limits.pressure_pct / 100
    fine = (waited_s or 0.0) <= most_s and (swapped or 0) <= limits.swapped_mb * 1e6
    # A cell that has a limit on its memory waits by design.
    is_limited = cell.memory is not None or cell.daemon_memory is not None
    return actual, WARN if is_limited and not fine else fine


def _judge_disks(epoch: _JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
    """Warn where tasks waited for disks that others used."""
    waited_s = measure_growth(edges.start, edges.end, "disk_wait_s")
    if waited_s is None:
        return NO_PRESSURE, NOT_APPLICABLE
    counters = ("run_disk_bytes", "disk_read_bytes", "disk_written_bytes")
    own, *whole = (measure_growth(edges.start, edges.end, key) or 0 for key in counters)
    total = sum(whole)
    others = max(0, total - own)
    actual = f"{100 * waited_s / epoch.span_s:.1f} %, {others / 1e6:.1f} of {total / 1e6:.1f} MB by others"
    most_s = epoch.span_s * epoch.limits.pressure_pct / 100
    return actual, WARN if waited_s > most_s and others > max(FEW_DISK_BYTES, total / 2) else PASS


def _judge_clocks(epoch: _JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
    """Judge what held the clocks of boards and processors back; a power limit only warns, unless the config says so.

    A board on which the cell does not train only warns. Nothing is judged where no device of the cell counts it.
    """
    boards = epoch.data.cell.accelerator.boards
    devices = edges.list_devices(boards)
    if not devices:
        return "no board, and no sensor of a processor", NOT_APPLICABLE
    over: list[str] = []
    under: list[str] = []
    for reasons, limit in ((SLOWED, epoch.limits.slowed_pct), (CAPPED, epoch.limits.capped_pct)):
        for start, end in devices:
            is_own = not end.uuid or end.uuid in boards
            for text, share in describe_held(start, end, reasons, epoch.span_s).items():
                exceeds = not limit if share is None else 100 * share > limit
                (over if is_own and exceeds else under).append(text if is_own else f"{text} (not the cell's board)")
    is_counted = any(end.uuid in boards if end.uuid else end.held_s or end.held_times for _, end in devices)
    temps = [state.temp_c for pair in devices for state in pair if state.temp_c is not None]
    hottest = f"at most {max(temps):.0f} °C" if temps else "temperature unknown"
    told = "; ".join(over or under or ["nothing did" if is_counted else "no device here counts it"])
    return f"{told}; {hottest}", FAIL if over else WARN if under else PASS if is_counted else NOT_APPLICABLE


def _check_frequency(epoch: _JudgedEpoch) -> Check:
    """Warn where a host computes at another speed after the cell than before it, or than at the run's start."""
    cell, limit = epoch.data.cell, epoch.limits.frequency_pct / 100
    expected = f"a fixed piece of work takes the same CPU time to {100 * limit:g} %"
    spins = {"": cell.spin, **{f" on {host.host}": host.spin for host in cell.hosts}}
    texts: dict[str, list[str]] = {WARN: [], PASS: []}
    for where, spin in spins.items():
        if spin is None:
            texts[WARN].append(f"{NOT_MEASURED}{where}")
            continue
        scatter = max(one.scatter for one in (spin.first, spin.before, spin.after))
        first_ms, before_ms, after_ms = times = [1e3 * one.best_s for one in (spin.first, spin.before, spin.after)]
        changed, allowed = max(times) / min(times) - 1, max(limit, SCATTERS * scatter)
        actual = f"{first_ms:.3f} ms before the first cell, {before_ms:.3f} before this one and {after_ms:.3f} after it"
        actual += f"{where}: {100 * changed:.1f} %"
        if allowed > limit:
            actual += f", where the host's speed scatters by {100 * scatter:.1f} % at any moment"
        texts[PASS if changed <= allowed else WARN].append(actual)
    verdict = WARN if texts[WARN] else PASS
    return epoch.check("frequency", expected, "; ".join(texts[verdict]), verdict)


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
