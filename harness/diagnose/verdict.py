"""What a diagnosis means: the knee, what limits the accelerator, the bottleneck stage, and what to change; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.diagnose.advice import format_ms, suggest_changes
from harness.diagnose.diagnosis import Diagnosis, Point, Stage
from harness.report.claims.bound import find_knee
from harness.report.labels import megabytes, percent, significant, spell
from harness.workloads.overlap import workers_to_hide

FED: Final = 0.90
"""Utilisation from which an accelerator counts as fed (MLPerf Storage: accelerator utilisation of 90 % or more)."""
BUSY: Final = 0.85
"""Share of a resource from which it is taken for saturated; workers that come and go never hold all of it."""
OTHERS: Final = 0.2
"""Share of the host's processors, kept busy by other programs, from which a diagnosis is to be made again."""

_AGAIN: Final = "Nothing before a diagnosis without the other programs: it may find that nothing is wrong here."


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusions."""

    knee: int
    """The fewest workers that do nearly as well as any number that was tried."""
    expected: int
    """t_load / t_compute, rounded up: the knee of workers that share nothing."""
    best: float
    """The best utilisation, 0 to 1."""
    limit: str
    """What keeps utilisation from rising: accelerator, step (which never waits, but is slowed down), cores, storage,
    other (a resource that is shared and neither), others (programs that are not ours), or too few workers."""
    stage: Stage
    """The stage that takes most of a load."""
    headline: str
    evidence: tuple[str, ...]
    changes: tuple[str, ...]
    """What to change, the most promising first."""


def compute_stage_s(diagnosis: Diagnosis, stage: Stage) -> float:
    """Return a stage's seconds of a batch as training meets them: from storage where memory cannot hold the files."""
    if stage.cold_batch_s is None or diagnosis.machine.caches(diagnosis.subject):
        return stage.batch_s
    return stage.cold_batch_s


def judge(diagnosis: Diagnosis) -> Verdict:
    """Return what the measurements say."""
    utilisation = {point.workers: point.utilisation for point in diagnosis.points}
    found, best = int(find_knee(utilisation)), max(utilisation.values())
    stage = max(diagnosis.stages, key=lambda one: compute_stage_s(diagnosis, one))
    limit = _limit(diagnosis, found, best, stage)
    expected = workers_to_hide(diagnosis.load_s, diagnosis.compute_s)
    return Verdict(
        knee=found,
        expected=expected,
        best=best,
        limit=limit,
        stage=stage,
        headline=_headline(diagnosis, found, best, limit, stage),
        evidence=tuple(_evidence(diagnosis, found, expected, limit, stage)),
        changes=(_AGAIN,) if limit == "others" else suggest_changes(diagnosis, found, limit, stage),
    )


def _limit(diagnosis: Diagnosis, found: int, best: float, stage: Stage) -> str:
    if best >= FED:
        return "accelerator"
    if next(point for point in diagnosis.points if point.utilisation == best).waits < 1 - FED:
        return "step"
    flat = _flat(diagnosis.points, found)
    own = median(point.busy_cores for point in flat) / diagnosis.machine.cores
    crowd = _crowd(diagnosis)
    if max(own, 0 if crowd else median(point.host_busy for point in flat)) >= BUSY:
        return "cores"
    disk = [point.disk_busy for point in flat if point.disk_busy is not None]
    if disk and median(disk) >= BUSY:
        return "storage"
    if crowd:
        return "others"
    rises = found == max(point.workers for point in diagnosis.points)
    return "workers" if rises else "storage" if stage.kind == "read" else "other"


def _flat(points: Sequence[Point], found: int) -> list[Point]:
    """Return the points on which more workers gained nothing."""
    return [point for point in points if point.workers >= found]


def _headline(diagnosis: Diagnosis, found: int, best: float, limit: str, stage: Stage) -> str:
    return f"{_finding(diagnosis, found, percent(best), limit, stage)}{_crowd(diagnosis)}"


def _finding(diagnosis: Diagnosis, found: int, reached: str, limit: str, stage: Stage) -> str:
    if limit == "others":
        return f"The accelerator reaches {reached} at best."
    if limit == "accelerator" and found == 1:
        return f"The accelerator sets the pace: one worker hides loading ({reached} utilisation)."
    if limit == "accelerator":
        fewer = "1 worker" if found == 2 else f"fewer than {found} workers"
        return f"With {fewer}, {stage.name} starves the accelerator; {found} hide loading ({reached} utilisation)."
    if limit == "step":
        return f"Loading is hidden, and still the accelerator reaches only {reached}: the step shares its processors."
    why = {
        "cores": f"at best, for all {diagnosis.machine.cores} cores are busy by then",
        "storage": "at best, for storage gives no more",
        "workers": f"with {found} workers, and more of them would help",
        "other": "at best, for the workers wait for something that they share, and it is neither cores nor disk",
    }[limit]
    return f"{_capital(stage.name)} starves the accelerator: it reaches {reached} {why}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(diagnosis: Diagnosis, found: int, expected: int, limit: str, stage: Stage) -> list[str]:
    said = [_race(diagnosis, found, expected), _slowest(diagnosis, stage)]
    flat = _flat(diagnosis.points, found)
    if limit in {"cores", "storage", "other"}:
        said.append(_use(diagnosis, flat))
    loads = {point.workers: point.load_s for point in diagnosis.points if point.load_s is not None}
    if len(loads) > 1 and loads[max(loads)] > 1.25 * loads[min(loads)]:
        first, last = min(loads), max(loads)
        said.append(
            f"A worker takes {format_ms(loads[first])} for a batch's samples when there is {_count(first)}, and "
            f"{format_ms(loads[last])} when there are {last}: they share what they need."
        )
    slowed = max(point.step_s for point in diagnosis.points) / diagnosis.compute_s
    if slowed > 1.1:
        said.append(f"The step itself takes up to {slowed:.1f} times t_compute: what else runs takes cores from it.")
    return said


def _crowd(diagnosis: Diagnosis) -> str:
    """Say that the machine was not ours alone; empty where it was."""
    cores = diagnosis.machine.host_cores
    others = median(point.host_busy - point.busy_cores / cores for point in diagnosis.points)
    if others <= OTHERS:
        return ""
    busy = f"{others * cores:.1f} of {cores} cores busy meanwhile"
    return f" Other programs kept {busy}: diagnose again when they are gone."


def _race(diagnosis: Diagnosis, found: int, expected: int) -> str:
    ratio = diagnosis.load_s / diagnosis.compute_s
    who = "1 worker hides it" if expected == 1 else f"{expected} workers that share nothing would hide it"
    text = f"t_load is {significant(ratio, 2)} times t_compute: {who}"
    if found == expected:
        return f"{text}, and {found} {'is' if found == 1 else 'are'} where utilisation stops rising."
    return f"{text}; utilisation stops rising at {found}."


def _slowest(diagnosis: Diagnosis, stage: Stage) -> str:
    total = sum(compute_stage_s(diagnosis, one) for one in diagnosis.stages)
    share = compute_stage_s(diagnosis, stage)
    text = f"{_capital(stage.name)} takes {percent(share / total)} of preparing a batch"
    text += f" ({format_ms(share)} of {format_ms(total)})"
    if stage.cold_batch_s is not None and compute_stage_s(diagnosis, stage) == stage.cold_batch_s:
        text += ", from storage, for memory cannot hold the files"
    if not diagnosis.subject.runs_pipeline:
        text += f" in Python; operators of {spell(diagnosis.subject.loader)} can be timed only together"
    return f"{text}."


def _use(diagnosis: Diagnosis, flat: Sequence[Point]) -> str:
    cores = median(point.busy_cores for point in flat)
    parts = [f"{cores:.1f} of {diagnosis.machine.cores} cores are busy"]
    disk = [point.disk_busy for point in flat if point.disk_busy is not None]
    rates = [point.disk_bytes_per_s for point in flat if point.disk_bytes_per_s is not None]
    if disk:
        parts.append(f"the disk is {percent(median(disk))} of the time")
    if rates and median(rates) > 0:
        parts[-1] += f", at {megabytes(median(rates))}/s"
    first = min(point.workers for point in flat)
    where = f"; the files lie on {diagnosis.machine.filesystem}" if diagnosis.machine.filesystem else ""
    return f"From {_count(first)} on, {' and '.join(parts)}{where}."


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
