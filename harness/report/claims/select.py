"""Which rows a claim is about, and the median of their known values (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.report.claims.definition import Definition, Values
from harness.report.claims.rows import Row
from harness.report.labels import rtt, spell

_RTT_SLACK = 0.05
"""Of a round trip, or ms where that is more: the probe may find it a little longer."""


class NotChecked(Exception):
    """What a claim needs is not in the run; the message says what."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The median of a metric over the rows that were selected."""

    median: float
    rows: tuple[Row, ...]
    name: str


def sample(definition: Definition, selection: Mapping[str, object], rows: Sequence[Row]) -> Sample:
    """Return the median of the claim's metric over the valid rows of a selection; raises NotChecked."""
    name = described(selection)
    there = [row for row in rows if _matches(row, selection)]
    if not there:
        raise NotChecked(_absent(selection, rows))
    valid = [row for row in there if row.verdict == "valid"]
    if not valid:
        raise NotChecked(f"no valid row of {name}: {there[0].verdict}")
    known = [
        row for row in (_settled(valid, there) if definition.settled else valid) if definition.metric in row.values
    ]
    if not known:
        raise NotChecked(f"{definition.metric} of {name} was not measured")
    groups: dict[str, list[Row]] = {}
    for row in known:
        groups.setdefault(row.key if definition.peak else "", []).append(row)
    medians = {key: median(row.values[definition.metric] for row in group) for key, group in groups.items()}
    best = max(medians, key=lambda key: medians[key])
    return Sample(medians[best], tuple(groups[best]), spell(best) if definition.peak else name)


def values_of(values: Values, selection: Mapping[str, object], rows: Sequence[Row]) -> tuple[Any, ...]:
    """Return the values of the key that a claim runs over, in order; raises NotChecked where some are missing."""
    if values.listed:
        return values.listed
    there = [row.labels.get(values.key) for row in rows if _matches(row, selection)]
    found = sorted({value for value in there if isinstance(value, int | float)})
    if values.between is None:
        if len(found) < 2:
            raise NotChecked(f"fewer than two values of {values.key} in the run")
        return tuple(found)
    for end in values.between:
        if not any(_equal(values.key, value, end) for value in found):
            raise NotChecked(_absent({**selection, values.key: end}, rows))
    near, far = values.between
    return tuple(
        value
        for value in found
        if near <= value <= far or any(_equal(values.key, value, end) for end in values.between)
    )


def described(selection: Mapping[str, object]) -> str:
    """Return a selection in words: PyTorch, UNet3D, at 30 ms."""
    parts = []
    for key in sorted(selection, key=lambda key: (key != "loader", key != "workload")):
        value = selection[key]
        if key == "rtt_ms" and isinstance(value, int | float):
            parts.append("local files" if value == 0 else f"at {rtt(value)}")
        elif "." in key or key in ("samples", "ranks"):
            parts.append(f"{key.rpartition('.')[2]} {value}")
        else:
            parts.append(" or ".join(spell(str(one)) for one in (value if isinstance(value, list) else [value])))
    return ", ".join(parts) or "any row"


def _absent(selection: Mapping[str, object], rows: Sequence[Row]) -> str:
    """Return which part of a selection the run has none of."""
    for key in ("loader", "workload", "rtt_ms"):
        if key in selection and not any(_matches(row, {key: selection[key]}) for row in rows):
            return f"the run has no {described({key: selection[key]}).removeprefix('at ')}"
    return f"the run has no row of {described(selection)}"


def _settled(rows: Sequence[Row], whole: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that are not their cell's first; all of them where there are no others."""
    first: dict[str, int] = {}
    for row in whole:
        first[row.cell_id] = min(row.epoch, first.get(row.cell_id, row.epoch))
    return [row for row in rows if row.epoch > first[row.cell_id]] or rows


def _matches(row: Row, selection: Mapping[str, object]) -> bool:
    return all(
        any(_equal(key, row.labels.get(key), one) for one in (wanted if isinstance(wanted, list) else [wanted]))
        for key, wanted in selection.items()
    )


def _equal(key: str, found: object, wanted: object) -> bool:
    if key != "rtt_ms" or not isinstance(found, int | float) or not isinstance(wanted, int | float):
        return found == wanted
    if wanted == 0 or found == 0:
        return found == wanted
    return abs(found - wanted) <= max(_RTT_SLACK, _RTT_SLACK * wanted) + 1e-9
