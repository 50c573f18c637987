"""Rules on what stopped or slowed the hosts: quotas, memory, disks, heat, and their speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from harness.results.checks.judged import FAIL, NOT_APPLICABLE, NOT_MEASURED, PASS, UNKNOWN, WARN, Check, JudgedEpoch
from harness.results.edges import HostEdges, describe_held, measure_growth
from harness.system.heat import CAPPED, SLOWED

NO_PRESSURE = "this kernel does not count it"
FEW_DISK_BYTES = 16e6
"""What others may move on disks in an epoch, however little the run moves: logs, and pages that are written late."""
SCATTERS = 3
"""Scatters of a fixed piece of work within 40 ms by which its time may change: on a host that is shared the speed
follows the other guests."""


def check_hosts(epoch: JudgedEpoch) -> Iterable[Check]:
    """Judge what beside the run's own processes stopped or slowed the hosts."""
    limits = epoch.limits
    quotas = f"CPU quotas of control groups stop the run for ≤ {limits.throttled_pct:g} % of the epoch"
    yield _check_each_host(epoch, "throttled", quotas, "throttled", _judge_quotas)
    memory = f"tasks wait for memory for ≤ {limits.pressure_pct:g} %, ≤ {limits.swapped_mb:g} MB read from swap"
    yield _check_each_host(epoch, "pressure_memory", memory, "memory_wait_s", _judge_memory)
    disks = f"tasks wait for disks for ≤ {limits.pressure_pct:g} %, or the run itself moves most of the bytes"
    yield _check_each_host(epoch, "pressure_io", disks, "disk_wait_s", _judge_disks)
    clocks = f"heat and hardware hold clocks back for ≤ {limits.slowed_pct:g} % of the epoch"
    clocks += f", power limits for ≤ {limits.capped_pct:g} %" if limits.capped_pct < 100 else ""
    yield _check_each_host(epoch, "slowdown", clocks, "devices", _judge_clocks)
    yield _check_frequency(epoch)


def _check_each_host(
    epoch: JudgedEpoch,
    rule: str,
    expected: str,
    key: str,
    judge: Callable[[JudgedEpoch, HostEdges], tuple[str, str | bool]],
) -> Check:
    """Judge each host by its edges, which have `key` if it was measured; the gravest verdict names its hosts."""
    found: dict[str, list[str]] = defaultdict(list)
    for edges in epoch.hosts:
        actual, verdict = judge(epoch, edges) if key in edges.end else (NOT_MEASURED, WARN)
        verdict = verdict if isinstance(verdict, str) else PASS if verdict else FAIL
        found[verdict].append(f"{actual} on {edges.host}" if edges.host else actual)
    gravest = next(one for one in (FAIL, UNKNOWN, WARN, PASS, NOT_APPLICABLE) if one in found)
    return epoch.check(rule, expected, "; ".join(found[gravest]), gravest)


def _judge_quotas(epoch: JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
    """Judge for how long a CPU quota stopped the run: it is idle meanwhile, and no rule on others sees it."""
    if edges.start["throttled"] is None and edges.end["throttled"] is None:
        return "no control group of the run can have a quota", NOT_APPLICABLE
    times, stopped_s = (measure_growth(edges.start, edges.end, key) for key in ("throttled", "throttled_s"))
    if times is None or stopped_s is None:
        return "the control groups changed", UNKNOWN
    is_kept = 100 * stopped_s <= epoch.limits.throttled_pct * epoch.span_s
    return f"{stopped_s:.2f} s in {epoch.span_s:.2f} s, {times} times", is_kept


def _judge_memory(epoch: JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
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


def _judge_disks(epoch: JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
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


def _judge_clocks(epoch: JudgedEpoch, edges: HostEdges) -> tuple[str, str | bool]:
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


def _check_frequency(epoch: JudgedEpoch) -> Check:
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
