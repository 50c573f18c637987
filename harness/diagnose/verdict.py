"""What a diagnosis means: the knee, what limits the accelerator, the bottleneck stage, and what to change; pure.

The remedies by stage are from the textbook's sections 1, 3 and 5, in the words of this project's keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.diagnose.diagnosis import Diagnosis, Stage, SweepPoint
from harness.report.claims.bound import find_knee
from harness.report.labels import UNKNOWN, megabytes, percent, significant, spell
from harness.workloads.overlap import workers_to_hide

FED: Final = 0.90
"""Utilisation from which an accelerator counts as fed (MLPerf Storage: accelerator utilisation of 90 % or more)."""
BUSY: Final = 0.85
"""Share of a resource from which it counts as saturated; workers that come and go never use all of it."""
OTHERS: Final = 0.2
"""Share of the host's processors that other programs may keep busy. With more, a diagnosis has to be made again."""

_AGAIN: Final = "Nothing before a diagnosis without the other programs: it may find that nothing is wrong here."

_NATIVE: Final = ("dali", "spdl", "streaming")
"""Loaders that leave Python for native code or threads."""
_TO_NATIVE: Final = "loader=dali or loader=spdl: samples are decoded and transformed by native code or in threads."
_CHEAPER: Final[Mapping[str, str]] = {
    "decode": "Store samples at the size that is trained on, so that there is less to decode.",
    "augment": "Make {name} cheaper: after a crop and not before it, on fewer samples, or on the accelerator.",
    "collate": "A cheaper layout of batches: samples of like length pad less, and bytes are smaller than floats.",
}
"""How a stage takes less of the processors, whatever the loader, by its kind."""


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


def judge(diagnosis: Diagnosis) -> Verdict:
    """Return what the measurements say."""
    utilisation = {point.workers: point.utilisation for point in diagnosis.points}
    found, best = int(find_knee(utilisation)), max(utilisation.values())
    stage = find_slowest(diagnosis.stages)
    limit = _find_limit(diagnosis, found, best, stage)
    expected = workers_to_hide(diagnosis.load_s, diagnosis.compute_s)
    return Verdict(
        knee=found,
        expected=expected,
        best=best,
        limit=limit,
        stage=stage,
        headline=_find_headline(diagnosis, found, percent(best), limit, stage) + _describe_crowd(diagnosis),
        evidence=tuple(_list_evidence(diagnosis, found, expected, limit, stage)),
        changes=(_AGAIN,) if limit == "others" else _suggest_changes(diagnosis, found, limit, stage),
    )


def _find_limit(diagnosis: Diagnosis, found: int, best: float, stage: Stage) -> str:
    if best >= FED:
        return "accelerator"
    if next(point for point in diagnosis.points if point.utilisation == best).waits < 1 - FED:
        return "step"
    flat = _select_flat(diagnosis.points, found)
    own = median(point.busy_cores for point in flat) / diagnosis.machine.cores
    crowd = _describe_crowd(diagnosis)
    if max(own, 0 if crowd else median(point.host_busy for point in flat)) >= BUSY:
        return "cores"
    disk = [point.disk_busy for point in flat if point.disk_busy is not None]
    if disk and median(disk) >= BUSY:
        return "storage"
    if crowd:
        return "others"
    rises = found == max(point.workers for point in diagnosis.points)
    return "workers" if rises else "storage" if stage.kind == "read" else "other"


def _select_flat(points: Sequence[SweepPoint], found: int) -> list[SweepPoint]:
    """Return the points on which more workers gained nothing."""
    return [point for point in points if point.workers >= found]


def _find_headline(diagnosis: Diagnosis, found: int, reached: str, limit: str, stage: Stage) -> str:
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


def _list_evidence(diagnosis: Diagnosis, found: int, expected: int, limit: str, stage: Stage) -> list[str]:
    said = [_describe_race(diagnosis, found, expected), _describe_slowest(diagnosis, stage)]
    flat = _select_flat(diagnosis.points, found)
    if limit in {"cores", "storage", "other"}:
        said.append(_describe_use(diagnosis, flat))
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


def _describe_crowd(diagnosis: Diagnosis) -> str:
    """Say how busy other programs kept the machine; empty where they did not."""
    cores = diagnosis.machine.host_cores
    others = median(point.host_busy - point.busy_cores / cores for point in diagnosis.points)
    if others <= OTHERS:
        return ""
    busy = f"{others * cores:.1f} of {cores} cores busy meanwhile"
    return f" Other programs kept {busy}: diagnose again when they are gone."


def _describe_race(diagnosis: Diagnosis, found: int, expected: int) -> str:
    ratio = diagnosis.load_s / diagnosis.compute_s
    who = "1 worker hides it" if expected == 1 else f"{expected} workers that share nothing would hide it"
    text = f"t_load is {significant(ratio, 2)} times t_compute: {who}"
    if found == expected:
        return f"{text}, and {found} {'is' if found == 1 else 'are'} where utilisation stops rising."
    return f"{text}; utilisation stops rising at {found}."


def _describe_slowest(diagnosis: Diagnosis, stage: Stage) -> str:
    total = sum(one.batch_s for one in diagnosis.stages)
    text = f"{_capital(stage.name)} takes {percent(stage.batch_s / total)} of preparing a batch"
    text += f" ({format_ms(stage.batch_s)} of {format_ms(total)})"
    if not diagnosis.machine.caches(diagnosis.subject.bytes):
        text += ", from storage, for memory cannot hold the files"
    if not diagnosis.subject.runs_pipeline:
        text += f" in Python; operators of {spell(diagnosis.subject.loader)} can be timed only together"
    return f"{text}."


def _describe_use(diagnosis: Diagnosis, flat: Sequence[SweepPoint]) -> str:
    cores = median(point.busy_cores for point in flat)
    parts = [f"{cores:.1f} of {diagnosis.machine.cores} cores are busy"]
    disk = [point.disk_busy for point in flat if point.disk_busy is not None]
    if disk:
        parts.append(f"the disk is {percent(median(disk))} of the time")
    first = min(point.workers for point in flat)
    return f"From {_count(first)} on, {' and '.join(parts)}."


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _suggest_changes(diagnosis: Diagnosis, knee: int, limit: str, stage: Stage) -> tuple[str, ...]:
    """Return what to change, the most promising first."""
    key = f"loader.{diagnosis.subject.workers_key}"
    cheaper = _list_cheaper(diagnosis, stage)
    match limit:
        case "accelerator":
            enough = f"Nothing: {key}=1 is enough, and" if knee == 1 else f"{key}={knee}:"
            fewer = [f"To need fewer workers: {text}" for text in cheaper[:1]] if knee > 1 else []
            return (f"{enough} more workers only deepen the buffer.", *fewer)
        case "cores":
            return (*cheaper, _count_cores(diagnosis), f"{key}={knee}: with more, workers only share the same cores.")
        case "step":
            return (f"{key}={knee}, or fewer: every worker takes processor time from the step.", *cheaper)
        case "storage":
            return (*_list_for_reads(diagnosis), f"{key}={knee}: with more, workers only share the same storage.")
        case "workers":
            many = max(knee * 2, math.ceil(diagnosis.load_s / diagnosis.compute_s))
            return (f"{key}={many}, or 'diagnose.workers=[{knee},{many}]' to see.", *cheaper)
        case _:
            return (
                "Find what the workers wait for (`py-spy dump` on one of them shows it): a lock, a service, memory.",
                f"{key}={knee}: with more, workers only wait side by side.",
            )


def _count_cores(diagnosis: Diagnosis) -> str:
    """Return how many cores would be enough, and how much processor time a batch may take on the cores of here."""
    cores = diagnosis.machine.cores
    needed = math.ceil((diagnosis.load_cpu_s + diagnosis.compute_cpu_s) / diagnosis.compute_s)
    if needed <= cores:
        return f"These {cores} cores to itself: {needed} would feed it."
    text = f"{needed} cores would feed it as it is ({cores} are here)"
    if (spare := cores * diagnosis.compute_s - diagnosis.compute_cpu_s) > 0:
        takes = format_ms(diagnosis.load_cpu_s)
        text += f"; on these, a batch may take {format_ms(spare)} of processor time, and takes {takes}"
    return f"{text}."


def _list_cheaper(diagnosis: Diagnosis, stage: Stage) -> list[str]:
    """Return how the slowest stage is made cheaper."""
    loader = diagnosis.subject.loader
    native = [] if loader in _NATIVE else [_TO_NATIVE]
    match stage.kind:
        case "read":
            return _list_for_reads(diagnosis)
        case "decode" | "augment" | "collate":
            return [*(native if stage.kind != "collate" else []), *make_cheaper(stage)]
        case "transfer":
            stream = "loader=spdl: a batch is copied on a stream of its own while the step before it computes."
            fewer = (
                "Move fewer bytes: whole numbers of 8 bits, made floats on the accelerator, are a quarter of floats."
            )
            return [fewer] if loader == "spdl" else [stream, fewer]
        case _:
            threads = "loader=spdl: threads hand batches over without copying them from process to process."
            return [*([threads] if loader == "pytorch" else []), "Larger batches, so that fewer are handed over."]


def make_cheaper(stage: Stage) -> list[str]:
    """Return how a stage takes less of the processors, whatever the loader."""
    return [_CHEAPER[stage.kind].format(name=stage.name)] if stage.kind in _CHEAPER else []


def _list_for_reads(diagnosis: Diagnosis) -> list[str]:
    subject, machine = diagnosis.subject, diagnosis.machine
    text = "Read large sequential pieces in the place of single files: python -m loaders.streaming convert, then its "
    found = [f"{text}daemon (docs/streaming.md)."]
    if not machine.caches(subject.bytes):
        files, free = megabytes(subject.bytes), megabytes(machine.free_bytes)
        found.append(f"More memory, or a faster disk: {files} of files do not stay in {free} of free memory.")
    return found


def find_slowest(stages: Sequence[Stage]) -> Stage:
    """Return the stage that takes most of a batch."""
    return max(stages, key=lambda one: one.batch_s)


def name_shares(stages: Sequence[Stage]) -> str:
    """Return the stages with their shares of a batch, the longest first."""
    total = sum(one.batch_s for one in stages)
    longest = sorted(stages, key=lambda one: one.batch_s, reverse=True)
    return ", ".join(f"{one.name} {percent(one.batch_s / total)}" for one in longest)


def format_ms(seconds: float | None) -> str:
    """Write a duration given in s in ms."""
    return UNKNOWN if seconds is None else f"{significant(seconds * 1e3)} ms"
