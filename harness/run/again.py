"""Measures again, at the end of a run, the cells that something beside the run disturbed; says what it was.

Cells are chosen by what their rules refused and never by their result. A cell that a rule refuses for what its loader
did is not measured again: it would do so again, or would hide that it sometimes does.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from harness.config.specs import Tolerances
from harness.results.cell_folder import CellData
from harness.results.cells import Cell
from harness.results.checks import UNKNOWN, Check
from harness.results.collect import judge_cells, read_cells
from harness.results.edges import find_epoch_edges, measure_others
from harness.results.epoch_row import EpochRow, select_settled
from harness.results.folder import Ledger, LedgerEntry, RunFolder
from harness.run.cells.context import CellContext
from harness.run.cells.loop import run_cells
from harness.run.progress import RunProgress

Group = tuple[str, str, str]
"""Loader, workload and regime."""
SHARE: Final = 0.25
"""Of the time that the cells of a run took: what measuring again may take."""
ENOUGH: Final = 2
"""Valid epochs of a group from which repeats can be compared."""
_REMEDIES: Final = {
    "others_cpu": "end it, or run when it is idle; on a machine that is never quiet checks.others_cpu_pct=50 "
    "checks.others_cpus=8 allow more",
    "steal": "other guests of this virtual machine's host took processors: run at another time, or on another machine",
    "throttled": "raise the CPU quota of the container or service, or run outside of it",
    "slowdown": "a board or a processor is too hot or lacks power: cool it, or give it time before the run",
    "pressure_memory": "fewer workers or smaller batches, or more memory",
    "link": "a busy machine delays the link: end other work, ask for a lower rate_gbit, or use netem",
    "step": "the emulated step got no processor in time: end other work, or have fewer workers",
    "clock": "a clock was set or drifts: let chrony or systemd-timesyncd keep the hosts' clocks, and look at its state",
    "agent": "the energy agent had no processor in time: end other work, or raise energy.interval_ms",
}
"""What would help, by the kind of disturbance."""
_KINDS: Final = {
    **{rule: rule for rule in ("others_cpu", "steal", "throttled", "slowdown", "pressure_memory")},
    "step_time": "step",
    "missed_ticks": "agent",
    "clock_offset": "clock",
    **dict.fromkeys(("no_drops", "link_pause", "link_held", "link_in_epoch", "pings_lost"), "link"),
    **dict.fromkeys(("rtt", "rate", "jitter", "loss"), "link"),
}
"""Kinds of the rules that a disturbance breaks, by the rule or by the word that it begins with."""
_SHOWN: Final = 3
"""Programs that are named."""


def measure_again(
    context: CellContext, cells: Sequence[Cell], took_s: float, ledger: Ledger, progress: RunProgress
) -> None:
    """Measure disturbed cells again, up to `retries` times each, for at most a quarter of `took_s` in all.

    The earlier try of a cell is kept in its folder. A new try without a result leaves the earlier one in place.

    Raises what `run_cells` raises.
    """
    began, tolerances = time.monotonic(), context.experiment.checks
    for retry in range(1, context.experiment.retries + 1):
        found, _ = read_cells(context.run, [cell.cell_id for cell in cells])
        rows, checks = judge_cells(found, tolerances)
        left_s = SHARE * took_s - (time.monotonic() - began)
        if not (chosen := choose_again(cells, rows, checks, find_durations(ledger.read_entries()), left_s)):
            return
        for line in describe_disturbances(found, rows, checks):
            progress.note(line)
        many = "1 cell is" if len(chosen) == 1 else f"{len(chosen)} cells are"
        message = f"{many} measured again (try {retry} of retries={context.experiment.retries})"
        ledger.append("note", message=f"{message}: {', '.join(cell.cell_id for cell in chosen)}")
        progress.note(message)
        progress.start(chosen, len(cells) - len(chosen))
        run_cells(context, chosen, ledger, progress)
        progress.stop()


def choose_again(
    cells: Sequence[Cell],
    rows: Sequence[EpochRow],
    checks: Iterable[Check],
    durations_s: Mapping[str, float],
    left_s: float,
) -> list[Cell]:
    """Return the disturbed cells that can be measured again in the time that is left, in the order of `cells`.

    Those of the groups with the fewest valid rows come first.

    Args:
        cells: the plan.
        rows: the judged rows.
        checks: their checks.
        durations_s: what each cell took, s, by its id.
        left_s: the time that is left, s.
    """
    disturbed = find_disturbed(rows, checks)
    valid = count_valid(rows)
    # What disturbed a cell may have made it longer.
    quickest_s: dict[Group, float] = {}
    for cell in cells:
        if (took_s := durations_s.get(cell.cell_id)) is not None:
            quickest_s[_group_of(cell)] = min(took_s, quickest_s.get(_group_of(cell), took_s))
    chosen: set[str] = set()
    for cell in sorted(cells, key=lambda cell: valid.get(_group_of(cell), (0, 0))[0]):
        if cell.cell_id in disturbed and quickest_s.get(_group_of(cell), math.inf) <= left_s:
            chosen.add(cell.cell_id)
            left_s -= quickest_s[_group_of(cell)]
    return [cell for cell in cells if cell.cell_id in chosen]


def find_disturbed(rows: Iterable[EpochRow], checks: Iterable[Check]) -> set[str]:
    """Return the ids of the cells with a row that is refused, whose rows are refused for disturbances alone.

    A loader can stretch steps and fill the memory too: these are disturbances only beside another one.
    """
    refusing: dict[str, set[str]] = defaultdict(set)
    for check in checks:
        if check.refuses:
            refusing[check.cell_id].add(_kind_of(check))
    refused = {row.cell_id for row in rows if not row.is_valid}
    return {one for one in refused if "" not in refusing[one] and refusing[one] - {"step", "pressure_memory"}}


def _kind_of(check: Check) -> str:
    """Return the kind of disturbance that breaks a rule; empty where none does: the loader, or what nobody counts."""
    if check.verdict == UNKNOWN and check.rule in ("others_cpu", "steal"):
        return ""
    # The rules of another host, such as clock_offset_HOST, are the same rules.
    rule = check.rule
    return next((kind for name, kind in _KINDS.items() if rule == name or rule.startswith(f"{name}_")), "")


def _group_of(one: Cell | EpochRow) -> Group:
    return one.loader, one.workload, one.regime


def count_valid(rows: Sequence[EpochRow]) -> dict[Group, tuple[int, int]]:
    """Return how many rows of each group are valid, and how many there are.

    Of cells with several epochs those count that are compared: the settled ones.
    """
    settled = set(select_settled(rows))
    found: dict[Group, list[EpochRow]] = defaultdict(list)
    for row in rows:
        found[_group_of(row)].append(row)
    counted = {group: [row for row in own if row in settled] or own for group, own in found.items()}
    return {group: (sum(row.is_valid for row in own), len(own)) for group, own in counted.items()}


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a run that lack valid rows, in words."""

    empty: Sequence[str]
    """Without any."""
    thin: Sequence[str]
    """With a single one of several."""


def find_poor_groups(rows: Sequence[EpochRow]) -> Groups:
    """Return the groups with no valid row, and those with fewer than `ENOUGH`, of more."""
    named = {" · ".join(group): counts for group, counts in count_valid(rows).items()}
    return Groups(
        empty=[name for name, (valid, _) in named.items() if not valid],
        thin=[name for name, (valid, every) in named.items() if 0 < valid < min(ENOUGH, every)],
    )


def find_durations(entries: Iterable[LedgerEntry]) -> dict[str, float]:
    """Return what the last try of each finished cell took, s, by its id."""
    started: dict[str, datetime] = {}
    found: dict[str, float] = {}
    for entry in entries:
        at = datetime.fromisoformat(entry.t_utc)
        if entry.event == "started":
            started[entry.cell_id] = at
        elif entry.event == "done" and entry.cell_id in started:
            found[entry.cell_id] = (at - started[entry.cell_id]).total_seconds()
    return found


def describe_run(run: RunFolder, tolerances: Tolerances) -> list[str]:
    """Return what disturbed the refused rows of a run, as `describe_disturbances` does. Raises ResultsError."""
    found, _ = read_cells(run, [cell.cell_id for cell in run.read_plan().cells])
    return describe_disturbances(found, *judge_cells(found, tolerances))


def describe_disturbances(cells: Sequence[CellData], rows: Sequence[EpochRow], checks: Iterable[Check]) -> list[str]:
    """Return a sentence for each kind of disturbance: how many rows it spoiled, who it was, and what would help."""
    refused = {(row.cell_id, row.epoch) for row in rows if not row.is_valid}
    spoiled: dict[str, dict[tuple[str, int | None], str]] = defaultdict(dict)
    for check in checks:
        if check.refuses and (kind := _kind_of(check)):
            spoiled[kind][check.cell_id, check.epoch] = check.rule
    lines = []
    for kind, places in spoiled.items():
        rules = ", ".join(sorted(set(places.values())))
        others = _name_others(cells, places.keys()) if kind == "others_cpu" else ""
        who = f": {others}" if others else ""
        many = "1 row" if len(refused & places.keys()) == 1 else f"{len(refused & places.keys())} rows"
        lines.append(f"disturbed ({rules}): {many}{who}; to help: {_REMEDIES[kind]}")
    return lines


def _name_others(cells: Iterable[CellData], places: Iterable[tuple[str, int | None]]) -> str:
    """Return which programs used the CPU in some epochs, and for how many seconds."""
    wanted, total_s = set(places), 0.0
    used_s: dict[str, float] = defaultdict(float)
    for data in cells:
        for epoch, edges in find_epoch_edges(data.events).items():
            taken = measure_others(*edges)
            if (data.cell.cell_id, epoch) not in wanted or taken is None:
                continue
            total_s += taken.cpu_s
            for name, pid, own_s in taken.busiest:
                used_s[f"{name} (process {pid})"] += own_s
    busiest = sorted(used_s.items(), key=lambda one: -one[1])[:_SHOWN]
    named = [f"{name} used {own_s:.1f} s of CPU" for name, own_s in busiest]
    rest_s = total_s - sum(own_s for _, own_s in busiest)
    if rest_s > 0.1 * total_s:
        named.append(f"{'others' if named else 'processes'} that have ended or cannot be seen used {rest_s:.1f} s")
    return ", ".join(named)
