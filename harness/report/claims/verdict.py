"""A claim judged on rows (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import Any, Final

from harness.report.claims.bound import (
    FAIL,
    INCONCLUSIVE,
    NOT_CHECKED,
    STYLES,
    Verdict,
    combined,
    write_interval,
    written,
)
from harness.report.claims.definition import Accelerator, Definition, Needs
from harness.report.claims.metrics import ENERGY, METRICS, find_range
from harness.report.claims.rows import ClaimRow
from harness.report.claims.select import NotChecked, Sample, choices, group_cells, sample
from harness.report.intervals import Estimate, Interval, combine, divide, widen
from harness.report.labels import MODEL_CHECK, percent, significant
from harness.report.summary import find_joule_errors

_CPU: Final = "the CPU computes the steps"
_EMULATED: Final = "the accelerator is emulated"
_ASSUMED: Final = "the step's length is assumed"
_OTHER_SIZE: Final = "the step is published for samples of another size"
_SCALED: Final = "the step's length is the published one times a factor"

_REFUSED: Final[Mapping[Accelerator, tuple[str, ...]]] = {
    "real": (_CPU, _EMULATED),
    "computed": (_EMULATED,),
    "published": (_CPU, _ASSUMED, _OTHER_SIZE, _SCALED),
    "scaled": (_CPU, _ASSUMED, _OTHER_SIZE),
    "emulated": (),
}
_OF_STAGES: Final = {"auto": "cuda", "cuda": "cuda", "cpu": "cpu"}
"""What takes the batches of a stage that trains nothing, by the config's kind: `auto` would have emulated a step."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its verdict, as claims.json holds it."""

    id: str
    claim: str
    source: str
    expected: str
    """The paper's value."""
    actual: str
    """Ours; empty where there is none, or where it rests on an estimate."""
    verdict: Verdict
    reason: str
    """Why it was not checked. Else the values that pass, those that were compared, and the known cause of a failure."""
    conflict: str = ""
    """Where the paper contradicts itself."""
    value: float | None = None
    """Ours as a number; None where `actual` is empty."""
    interval: tuple[float, float] | None = None
    """Its 95 % interval; None with one repeat, and where there is no value."""
    span: str = ""
    """The interval, written."""


@dataclass(frozen=True, slots=True)
class _ClaimValue:
    """A claim's number, how sure it is, and what it was made from."""

    value: float
    interval: Interval | None
    samples: tuple[Sample, ...]
    told: str
    """The medians behind it, in words."""

    @property
    def rows(self) -> list[ClaimRow]:
        return [row for one in self.samples for row in one.rows]


def refuse(definition: Definition, reason: str) -> Claim:
    """Return a claim that is not checked."""
    return _make_claim(definition)("", NOT_CHECKED, reason)


def _make_claim(definition: Definition) -> partial[Claim]:
    expected = definition.bound.expected(definition.style)
    said = f"{MODEL_CHECK.capitalize()}: {definition.claim}" if definition.needs.model_check else definition.claim
    return partial(Claim, definition.id, said, definition.source, expected, conflict=definition.conflict)


def evaluate(definition: Definition, rows: Sequence[ClaimRow]) -> Claim:
    """Judge one claim on the rows of a run."""
    bound, style, claim = definition.bound, definition.style, _make_claim(definition)
    try:
        found = _find(definition, rows)
    except NotChecked as missing:
        return claim("", NOT_CHECKED, str(missing))
    if invented := _invented(definition, found.rows) or _replayed(definition, found.rows):
        return claim("", NOT_CHECKED, invented)
    claim = partial(claim, written(found.value, style), value=found.value)
    if found.interval is not None:
        ends, span = (found.interval.low, found.interval.high), write_interval(found.interval, style)
        claim = partial(claim, interval=ends, span=span)
    if lacking := _lacking(definition, found):
        return claim(NOT_CHECKED, lacking)
    if found.interval is None:
        return claim(INCONCLUSIVE, _join(["one repeat has no interval", bound.tolerance(style), found.told]))
    verdict = bound.judge(found.interval)
    reasons = [bound.tolerance(style), f"95 % interval {span}", _tell_accuracy(definition, found.rows), found.told]
    return claim(verdict, _join([*reasons, (definition.because or "cause unknown") if verdict == FAIL else ""]))


def _join(reasons: Iterable[str]) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _find(definition: Definition, rows: Sequence[ClaimRow]) -> _ClaimValue:
    if not definition.each:
        part, samples, told = _compare(definition, definition.of, definition.over, rows)
        return _ClaimValue(part.value, _bound(definition, part.interval, [samples]), samples, told)
    parts: dict[Any, Estimate] = {}
    used: list[tuple[Sample, ...]] = []
    for value, of, over in choices(definition, rows):
        parts[value], samples, _ = _compare(definition, of, over, rows)
        used.append(samples)
    number = partial(combined, definition.combine)
    medians = {value: part.value for value, part in parts.items()}
    if definition.combine in ("spread", "growth") and min(medians.values()) <= 0:
        raise NotChecked(f"{definition.metric} is 0 or less, and no {definition.combine} can be taken")
    style = "factor" if definition.over is not None else STYLES[METRICS[definition.metric]]
    told = ", ".join(f"{written(each, style)} at {value}" for value, each in medians.items())
    interval = _bound(definition, combine(definition.combine, parts, number), used)
    return _ClaimValue(number(medians), interval, tuple(chain(*used)), told)


def _compare(
    definition: Definition, of: Mapping[str, object], over: Mapping[str, object] | None, rows: Sequence[ClaimRow]
) -> tuple[Estimate, tuple[Sample, ...], str]:
    """Return a median, or the ratio of two, the samples behind it, and these in words."""
    above = sample(definition, of, rows)
    if over is None:
        return above.estimate, (above,), ""
    below = sample(definition, over, rows)
    if not below.median:
        raise NotChecked(f"{definition.metric} of {below.name} is 0, and no ratio can be taken")
    told = f"{_told(definition, above)} to {_told(definition, below)}"
    return divide(above.estimate, below.estimate), (above, below), told


def _bound(definition: Definition, interval: Interval | None, parts: Sequence[tuple[Sample, ...]]) -> Interval | None:
    """Return an interval widened by what sensors show wrongly, without values that the metric cannot have."""
    if interval is not None and definition.metric in ENERGY and definition.combine != "knee":
        interval = _widen(definition, interval, parts)
    if interval is None or definition.over is not None or definition.combine in ("knee", "spread"):
        return interval
    least, greatest = find_range(definition.metric)
    return Interval(max(interval.low, least), min(interval.high, greatest))


def _widen(definition: Definition, interval: Interval, parts: Sequence[tuple[Sample, ...]]) -> Interval:
    """Return the interval of joules, or of a number made of several medians or ratios of them, each off by most.

    `spread` and `growth` compare the parts with each other, so that both of two may be off.
    """
    sides = [
        [[(row.stored, row.values[definition.metric]) for row in one.rows if row.stored] for one in part]
        for part in parts
    ]
    if definition.combine not in ("spread", "growth"):
        errors = [find_joule_errors(*part) for part in sides if all(part)]
        return widen(interval, *(max(of) for of in zip(*errors, strict=True))) if errors else interval
    most = max(find_joule_errors(*(side for part in sides for side in part if side)), default=0.0)
    most = most if definition.over is None else 2 * most / (1 + most**2)
    if definition.combine == "growth":
        return widen(interval, most, most)
    wide = widen(Interval(1 + interval.low, 1 + interval.high), most, most)
    return Interval(max(0.0, wide.low - 1), wide.high - 1)


def _tell_accuracy(definition: Definition, rows: Sequence[ClaimRow]) -> str:
    """Return what an interval of joules holds beside repeats; empty of other numbers."""
    if definition.metric not in ENERGY:
        return ""
    is_known = all(row.stored is not None and row.stored.energy_accuracy_j is not None for row in rows)
    return "resolution and accuracy are in it" if is_known else "the sensors' accuracy is unknown"


def _told(definition: Definition, one: Sample) -> str:
    return f"{written(one.median, STYLES[METRICS[definition.metric]])} ({one.name})"


def _invented(definition: Definition, rows: Sequence[ClaimRow]) -> str:
    """Return why joules are no measurement; empty where they are, or where there are none in the claim."""
    if definition.metric not in ENERGY:
        return ""
    if any("emulated" in row.accelerator for row in rows):
        return "the accelerator is emulated"
    domains = ("cpu", "dram", "gpu") if definition.metric == "total_j" else (definition.metric.removesuffix("_j"),)
    estimated = sorted({domain for row in rows for domain in row.estimated if domain in domains})
    if estimated:
        return f"the joules of {'/'.join(estimated)} are an estimate"
    whole = {"cpu_j", "gpu_j"} if definition.metric == "total_j" else set()
    return "" if all(whole <= row.values.keys() for row in rows) else "no joules of CPU and GPU"


def _replayed(definition: Definition, rows: Sequence[ClaimRow]) -> str:
    """Return why rows are not of the kind that the claim is of: a model check is of replayed times, others are not."""
    if not definition.needs.model_check:
        return "its samples replay published times" if any(row.model_check for row in rows) else ""
    if not all(row.model_check for row in rows):
        return "its samples are prepared, where the claim is of a replay of published times"
    is_waiting = all(row.accelerator.startswith(("emulated", "none")) for row in rows)
    return "" if is_waiting else "its steps are computed, where the claim is of steps that wait"


def _lacking(definition: Definition, found: _ClaimValue) -> str:
    """Return what the run would have to have for the claim to be judged."""
    needs, rows = definition.needs, found.rows
    lacking: list[str] = []
    lacking += dict.fromkeys(reason for row in rows for reason in _find_unmet(needs.accelerator, row))
    lacking += _unordered(definition, rows)
    lacking += _other_boards(needs, rows)
    if (samples := min(_count(row.labels.get("samples")) for row in rows)) < needs.samples:
        lacking.append(f"an epoch of {samples} samples, where the claim needs {needs.samples}")
    if (listed := min(_count(row.labels.get("listed") or row.labels.get("samples")) for row in rows)) < needs.listed:
        lacking.append(f"a list of {listed} paths, where the claim needs {needs.listed}")
    if needs.sample_kb and (others := _find_other_size(needs.sample_kb, rows)):
        lacking.append(others)
    shortest = min(median(row.values.get("duration_s", 0.0) for row in one.rows) for one in found.samples)
    if shortest < needs.epoch_s:
        lacking.append(f"an epoch shorter than {needs.epoch_s:g} s")
    lacking += _slow_links(needs, rows)
    groups = [cells for one in found.samples for cells in group_cells(one.rows, definition.metric)]
    every = [cell for cells in groups for cell in (cells.values() if isinstance(cells, Mapping) else cells)]
    if definition.settled and (epochs := min(map(len, every))) < needs.settled:
        lacking.append(f"{epochs} settled epochs a cell, where the claim needs {needs.settled}")
    if (repeats := min(map(len, groups))) < needs.repeats:
        lacking.append(f"{repeats} repeats, where the claim needs {needs.repeats}")
    return "; ".join(lacking)


def _other_boards(needs: Needs, rows: Sequence[ClaimRow]) -> list[str]:
    """Return that the GPUs are too few, or not those that a claim is of; with a board named, more are as wrong."""
    others = [row for row in rows if row.accelerator.startswith("cuda") and needs.board not in row.accelerator]
    lacking = [f"the accelerator is no {needs.board}"] if others else []
    fewest, most = min(row.devices for row in rows), max(row.devices for row in rows)
    if fewest < needs.devices and (needs.devices > 1 or needs.board):
        lacking.append(f"{fewest} of the {needs.devices} devices that the claim is of")
    elif needs.board and most > needs.devices:
        lacking.append(f"{most} devices, where the claim is of {needs.devices}")
    return lacking


def _slow_links(needs: Needs, rows: Sequence[ClaimRow]) -> list[str]:
    """Return that links are slower than a claim needs; local files have no link."""
    slowest = min((rate for row in rows if isinstance(rate := row.labels.get("rate_gbit"), int | float)), default=None)
    if slowest is None or slowest >= needs.rate_gbit:
        return []
    return [f"a link of {slowest:g} Gbit/s, where the claim needs {needs.rate_gbit:g}"]


def _find_other_size(ends: Sequence[float], rows: Sequence[ClaimRow]) -> str:
    """Return that samples are smaller or larger than those of a claim; empty where they are not."""
    sizes = [float(str(row.labels.get("sample_kb", 0.0))) for row in rows]
    others = [size for size in sizes if not ends[0] <= size <= ends[1]]
    told = f"where the claim is of {ends[0]:g} to {ends[1]:g} kB"
    return f"samples of {significant(others[0])} kB, {told}" if others else ""


def _count(samples: object) -> int:
    return int(samples) if isinstance(samples, int | float) else 0


def _unordered(definition: Definition, rows: Sequence[ClaimRow]) -> list[str]:
    """Return that too few batches have other samples than PyTorch's, where a claim on reordering needs such batches."""
    if not definition.needs.reordered:
        return []
    shares = [row.values["reordered_share"] for row in rows if "reordered_share" in row.values]
    if not shares:
        return ["which batches were reordered is not known"]
    share = median(shares)
    enough = share >= definition.needs.reordered
    return [] if enough else [f"{percent(share)} of the batches have other samples than PyTorch's"]


def _find_unmet(wanted: Accelerator, row: ClaimRow) -> list[str]:
    """Return why the step of a row is not of the kind that a claim wants; empty where it is."""
    if wanted == "any":
        return []
    label = row.accelerator
    if label.startswith("none"):
        label = _OF_STAGES.get(str(row.labels.get("accelerator.kind")), label)
    if not label or label.startswith("none"):
        return ["there is no accelerator" if label else "the accelerator is not known"]
    known = _describe(label)
    return [reason for reason in _REFUSED[wanted] if reason in known]


def _describe(label: str) -> tuple[str, ...]:
    """Return what a label (harness.workloads.emulated, harness.workloads.training) says of a step; of a GPU nothing."""
    if label == "cpu":
        return (_CPU,)
    if not label.startswith("emulated"):
        return ()
    of, _, scale = label.removeprefix("emulated: ").partition(",")
    assumed = of == "idle" or of.startswith("assumed")
    said = {_ASSUMED: assumed, _OTHER_SIZE: " at " in of, _SCALED: bool(scale) and not assumed}
    return (_EMULATED, *(reason for reason, holds in said.items() if holds))
