"""Rows on which a claim is PASS and rows on which it is FAIL, made from its predicate; a sound claim has both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from harness.errors import ConfigError
from harness.report.claims.bound import Bound, Verdict
from harness.report.claims.definition import Definition, Values
from harness.report.claims.metrics import find_range
from harness.report.claims.rows import ClaimRow
from harness.report.intervals import Interval

_ELSEWHERE: Final = {"workload": "any", "loader": "any", "regime": "any", "rtt_ms": 0.0}
"""What a row is where a claim does not say."""
_KEYS: Final = (1, 2, 4)
"""Values of a key of which a claim names none."""
_WORSE: Final = 0.5
"""Value below the knee, over that from the knee on."""


def make_witness(definition: Definition, verdict: Verdict) -> tuple[ClaimRow, ...]:
    """Return rows on which a claim is PASS or FAIL: repeats that agree, of a machine as large as the claim needs.

    Raises ConfigError where no value of the claim's number has that verdict.
    """
    target = _choose_target(definition, verdict)
    varied = "over" if definition.each and all(values.side == "over" for values in definition.each) else "of"
    every = [_choose_values(values, target) for values in definition.each]
    found: dict[tuple[tuple[str, object], ...], float] = {}
    scale = _choose_scale(definition, target)
    for chosen in product(*every):
        places = [place for place, values in enumerate(definition.each) if values.side in ("both", varied)]
        is_first = all(chosen[place] == every[place][0] for place in places)
        part = _choose_part(definition, target, chosen, every, is_first=is_first)
        sides: dict[str, Mapping[str, object]] = {"of": definition.of, "over": definition.over or {}}
        for values, value in zip(definition.each, chosen, strict=True):
            for side in ("of", "over") if values.side == "both" else (values.side,):
                sides[side] = {**sides[side], values.key: value}
        numbers = {"of": part * scale, "over": scale} if varied == "of" else {"of": scale, "over": scale / part}
        for side in ("of", "over") if definition.over is not None else ("of",):
            for labels in _write_out(sides[side]):
                found[tuple(sorted(labels.items()))] = numbers[side]
    return tuple(row for labels, number in found.items() for row in _make_rows(definition, dict(labels), number))


def _choose_target(definition: Definition, verdict: Verdict) -> float:
    """Return a value of the claim's number that has a verdict."""
    bound, (least, greatest) = definition.bound, _find_number_range(definition)
    if definition.combine == "knee":
        pool = list(map(_as_number, _choose_values(definition.each[0], bound.paper)))
    else:
        pool = _make_pool(bound, least, greatest)
    for value in pool:
        if least <= value <= greatest and bound.judge(Interval(value, value)) == verdict:
            return float(value)
    raise ConfigError(
        f"is={bound.kind}: no value from {least:g} to {greatest:g}, the range of the claim's number, is a {verdict}; "
        "expected a bound within the range, or another metric"
    )


def _make_pool(bound: Bound, least: float, greatest: float) -> list[float]:
    top = greatest if math.isfinite(greatest) else 2 * max(bound.high, bound.paper) + 1
    ends = (bound.paper, (bound.low + bound.high) / 2, (bound.high + top) / 2, (bound.low + least) / 2)
    return [*ends, (bound.paper + top) / 2, (bound.paper + least) / 2, top, least]


def _find_number_range(definition: Definition) -> tuple[float, float]:
    if definition.combine == "spread":
        return 0.0, math.inf
    if definition.over is not None or definition.combine in ("growth", "knee"):
        return 1e-6, math.inf
    return find_range(definition.metric)


def _choose_values(values: Values, target: float) -> list[object]:
    if values.between is not None:
        return list(values.between)
    return list(values.listed or sorted({*_KEYS, target if target >= 1 and target == round(target) else 1}))


def _choose_scale(definition: Definition, target: float) -> float:
    """Return the value of the rows that the others are compared with, such that all are in the metric's range."""
    if definition.over is None and definition.combine not in ("spread", "growth", "knee"):
        return 1.0
    greatest = find_range(definition.metric)[1]
    if math.isfinite(greatest):
        return 0.9 * greatest / max(1.0, 1.0 + target) if definition.combine == "spread" else 0.9 / max(1.0, target)
    return max(10.0, definition.needs.epoch_s) * max(1.0, 1.0 / target if target else 1.0)


def _choose_part(
    definition: Definition, target: float, index: Sequence[object], every: Sequence[Sequence[object]], *, is_first: bool
) -> float:
    """Return the number of one combination of keys, such that all of them combine to the target."""
    match definition.combine:
        case "spread":
            return 1.0 + target if is_first else 1.0
        case "growth":
            return target if index[0] == max(every[0], key=_as_number) else 1.0
        case "knee":
            return 1.0 if _as_number(index[0]) >= target else _WORSE
    return target


def _as_number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _write_out(selection: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Return the labels of a row for every value of the keys of a selection that list several."""
    lists = [value if isinstance(value, list) else [value] for value in selection.values()]
    for chosen in product(*lists):
        yield {**_ELSEWHERE, **dict(zip(selection, chosen, strict=True))}


def _make_rows(definition: Definition, labels: dict[str, object], number: float) -> Iterator[ClaimRow]:
    needs, key = definition.needs, " ".join(f"{name}={value}" for name, value in labels.items())
    values = {"duration_s": max(10.0, needs.epoch_s), "cpu_j": 1.0, "gpu_j": 1.0, "reordered_share": 1.0}
    labels = {"samples": needs.samples, "listed": needs.listed or None, "sample_kb": sum(needs.sample_kb) / 2, **labels}
    for repeat in range(1, max(2, needs.repeats) + 1):
        for epoch in range(1, needs.settled + 2):
            yield ClaimRow(
                cell_id=f"{key} r{repeat}",
                epoch=epoch,
                labels=labels,
                key=key,
                values={**values, definition.metric: number},
                verdict="valid",
                accelerator="emulated: A100" if needs.model_check else f"cuda: {needs.board or 'a board'}",
                model_check="Table 2" if needs.model_check else "",
                devices=needs.devices,
            )
