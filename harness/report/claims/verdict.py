"""A claim judged on rows (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.claims.definition import Definition
from harness.report.claims.metrics import ENERGY, METRICS
from harness.report.claims.rows import Row
from harness.report.claims.select import NotChecked, Sample, sample, values_of
from harness.report.claims.words import STYLES, combined, written
from harness.report.labels import percent
from harness.results.epoch_row import SPREAD_LIMIT, compute_spread

PASS = "PASS"  # noqa: S105
FAIL = "FAIL"
NOT_CHECKED = "NOT CHECKED"


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
    verdict: str
    """PASS, FAIL or NOT CHECKED."""
    reason: str
    """Why it was not checked. Else the values that pass, those that were compared, and the known cause of a failure."""


def evaluate(definition: Definition, rows: Sequence[Row]) -> Claim:
    """Judge one claim on the rows of a run."""
    expected = definition.bound.expected(definition.style)

    def claim(verdict: str, actual: str, reason: str) -> Claim:
        return Claim(definition.id, definition.claim, definition.source, expected, actual, verdict, reason)

    try:
        value, used, told = _value(definition, rows)
    except NotChecked as missing:
        return claim(NOT_CHECKED, "", str(missing))
    if invented := _invented(definition, used):
        return claim(NOT_CHECKED, "", invented)
    actual = written(value, definition.style)
    if lacking := _lacking(definition, used):
        return claim(NOT_CHECKED, actual, lacking)
    holds = definition.bound.holds(value)
    reasons = [definition.bound.tolerance(definition.style), told, _unsteady(definition, used)]
    if not holds and definition.because:
        reasons.append(definition.because)
    return claim(PASS if holds else FAIL, actual, "; ".join(reason for reason in reasons if reason))


def _value(definition: Definition, rows: Sequence[Row]) -> tuple[float, list[Row], str]:
    """Return the claim's number, the rows that it was made from, and the medians behind it in words."""
    if definition.each is None:
        return _one(definition, {}, rows)
    key = definition.each.key
    found: dict[Any, float] = {}
    used: list[Row] = []
    for value in values_of(definition.each, definition.of, rows):
        found[value], behind, _ = _one(definition, {key: value}, rows)
        used += behind
    style = "factor" if definition.over is not None else STYLES[METRICS[definition.metric]]
    told = ", ".join(f"{written(each, style)} at {value}" for value, each in found.items())
    return combined(definition.combine, found), used, told


def _one(definition: Definition, fixed: Mapping[str, object], rows: Sequence[Row]) -> tuple[float, list[Row], str]:
    above = sample(definition, {**definition.of, **fixed}, rows)
    if definition.over is None:
        return above.median, list(above.rows), ""
    below = sample(definition, {**definition.over, **fixed}, rows)
    if not below.median:
        raise NotChecked(f"{definition.metric} of {below.name} is 0, and no ratio can be taken")
    told = f"{_told(definition, above)} to {_told(definition, below)}"
    return above.median / below.median, [*above.rows, *below.rows], told


def _told(definition: Definition, one: Sample) -> str:
    return f"{written(one.median, STYLES[METRICS[definition.metric]])} ({one.name})"


def _unsteady(definition: Definition, rows: Sequence[Row]) -> str:
    """Return how far the rows of one loader, workload and regime lie apart, where that is too far to trust a median."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        place = (row.key, *(str(row.labels.get(key)) for key in ("workload", "regime")))
        groups.setdefault(place, []).append(row.values[definition.metric])
    widest = max(compute_spread(each) or 0.0 for each in groups.values())
    return f"the rows of a median lie up to {percent(widest)} apart" if widest >= SPREAD_LIMIT else ""


def _invented(definition: Definition, rows: Sequence[Row]) -> str:
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


def _lacking(definition: Definition, rows: Sequence[Row]) -> str:
    """Return what the run would have to have for the claim to be judged."""
    found = []
    if definition.needs.accelerator != "any":
        labels = dict.fromkeys(row.accelerator for row in rows)
        if not all(labels):
            found.append("the accelerator is not known")
        elif any(label.startswith("none") for label in labels):
            found.append("there is no accelerator")
        elif definition.needs.accelerator == "real" and any(label.startswith("emulated") for label in labels):
            found.append("the accelerator is emulated")
    devices = min(row.devices for row in rows)
    if devices < definition.needs.devices:
        found.append(f"{devices} of the {definition.needs.devices} devices that the claim is of")
    return "; ".join(found)
