"""Rules on processor time: outside the epoch's clock, of its steps, and of others."""

from __future__ import annotations

from collections.abc import Iterable

from harness.results.attributed import compute_cpu_excess, count_cpu_s
from harness.results.checks.judged import (
    EARLY_BYTES,
    NOT_APPLICABLE,
    OVERHEAD,
    PASS,
    READS_ONCE,
    UNKNOWN,
    WARN,
    Check,
    JudgedEpoch,
)
from harness.results.edges import measure_early, measure_others, measure_set_up

MOST_EXCESS = 0.03
"""Share of a host's CPU seconds by which the CPU seconds of the run's processes there may exceed them."""
NAMED = 3
"""Processes of others that a check names."""
ROUNDING_S = 0.05
"""The kernel counts CPU time in steps of 10 ms, for each process by itself."""


def check_work(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge what the run and others computed."""
    for check in (_check_early_work, _check_step_time, _check_setup_work, _check_alone, _check_cpu_parts):
        yield check(epoch)
    yield from _check_others(epoch)


def _check_early_work(epoch: JudgedEpoch) -> Check:
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


def _check_step_time(epoch: JudgedEpoch) -> Check:
    """Judge how long the median emulated step took; warn of a host so late for some that the epoch is longer."""
    limit_pct, stretch = epoch.limits.step_pct, epoch.data.batches[epoch.row.epoch].stretch
    expected = f"emulated steps within {limit_pct:g} % of their nominal time: the median; all, of the epoch's time"
    if stretch is None:
        return epoch.check("step_time", expected, "no step is emulated", NOT_APPLICABLE)
    actual = f"the median {100 * stretch[0]:+.2f} %, all {100 * stretch[1]:+.2f} % of the epoch"
    # A host whose processors are full is late for a real device too.
    median, every = (abs(one) <= limit_pct / 100 for one in stretch)
    return epoch.check("step_time", expected, actual, WARN if median and not every else median)


def _check_setup_work(epoch: JudgedEpoch) -> Check:
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


def _check_alone(epoch: JudgedEpoch) -> Check:
    others = epoch.data.cell.other_runs
    found = f"{len(others)} other: {', '.join(others)}" if others else ""
    expected = "no other run on this machine: each counts the CPU joules of both"
    return epoch.warn("alone", expected, found, "none seen")


def _check_cpu_parts(epoch: JudgedEpoch) -> Check:
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


def _check_others(epoch: JudgedEpoch) -> Iterable[Check]:
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
