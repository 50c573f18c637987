"""Which rows a claim is about, and the median of their known values (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from harness.report.claims.definition import Definition, Values
from harness.report.claims.metrics import METRICS
from harness.report.claims.rows import ClaimRow
from harness.report.intervals import Cells, Estimate, estimate, find_typical
from harness.report.labels import rtt, spell
from harness.results.epoch_row import select_settled

_RTT_SLACK = 0.05
"""Of a round trip, or ms where that is more: the probe may find it a little longer."""


class NotChecked(Exception):
    """What a claim needs is not in the run; the message says what."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows that were selected, and the median of a metric over them."""

    estimate: Estimate
    rows: tuple[ClaimRow, ...]
    name: str

    @property
    def median(self) -> float:
        """The metric's median."""
        return self.estimate.value


def sample(definition: Definition, selection: Mapping[str, object], rows: Sequence[ClaimRow]) -> Sample:
    """Return the median of the claim's metric over the valid rows of a selection; raises NotChecked."""
    name = described(selection)
    there = [row for row in rows if _matches(row, selection)]
    if not there:
        raise NotChecked(_absent(selection, rows))
    if definition.settled:
        there = list(select_settled(there))
        if not there:
            raise NotChecked(f"no settled epoch of {name}: each cell has one epoch")
    valid = [row for row in there if row.verdict == "valid"]
    if not valid:
        raise NotChecked(f"no valid row of {name}: {there[0].verdict}")
    known = [row for row in valid if definition.metric in row.values]
    if not known:
        raise NotChecked(f"{definition.metric} of {name} was not measured")
    by_setting: dict[str, list[ClaimRow]] = {}
    for row in known:
        by_setting.setdefault(row.key if definition.peak else "", []).append(row)
    # A share lies between 0 and 1, where its logarithm means nothing; a ratio of two shares is a ratio.
    log = definition.over is not None or METRICS[definition.metric] != "share"
    typical = _find_typical(rows, definition) if log else None
    estimates = {
        key: estimate(group_cells(group, definition.metric), log=log, typical=typical)
        for key, group in by_setting.items()
    }
    best = max(estimates, key=lambda key: estimates[key].value)
    return Sample(estimates[best], tuple(by_setting[best]), spell(best) if definition.peak else name)


def _find_typical(rows: Sequence[ClaimRow], definition: Definition) -> float | None:
    """Return how far the cells of all of the run's groups usually lie apart in the claim's metric."""
    every = list(select_settled(rows)) if definition.settled else rows
    return find_typical(
        group_cells(
            [row for row in every if row.verdict == "valid" and definition.metric in row.values], definition.metric
        )
    )


def group_cells(rows: Sequence[ClaimRow], metric: str) -> list[Cells]:
    """Return a metric's values by loader, setting, workload and regime, and in each of these by cell."""
    groups: dict[tuple[object, ...], dict[tuple[str, int | None], list[float]]] = {}
    for row in rows:
        place = (row.key, row.labels.get("workload"), row.labels.get("regime"))
        groups.setdefault(place, {}).setdefault((row.cell_id, row.repeat), []).append(row.values[metric])
    return [_by_repeat(cells) for cells in groups.values()]


def _by_repeat(cells: Mapping[tuple[str, int | None], list[float]]) -> Cells:
    known = {repeat: values for (_, repeat), values in cells.items() if repeat is not None}
    return known if len(known) == len(cells) else list(cells.values())


def choices(
    definition: Definition, rows: Sequence[ClaimRow]
) -> Iterator[tuple[object, Mapping[str, object], Mapping[str, object] | None]]:
    """Yield each combination of the keys that a claim runs over: its name, and which rows it is `of` and `over`.

    Raises NotChecked where values that the claim names are missing. The name of the values of one key is the value.
    """
    every = [_values_of(values, definition, rows) for values in definition.each]
    for chosen in product(*every):
        sides: dict[str, dict[str, object]] = {"of": {**definition.of}, "over": {**(definition.over or {})}}
        for values, value in zip(definition.each, chosen, strict=True):
            for side in sides if values.side == "both" else (values.side,):
                sides[side][values.key] = value
        name = chosen[0] if len(chosen) == 1 else ", ".join(str(value) for value in chosen)
        yield name, sides["of"], None if definition.over is None else sides["over"]


def _values_of(values: Values, definition: Definition, rows: Sequence[ClaimRow]) -> tuple[Any, ...]:
    """Return the values of a key that a claim runs over, in order; raises NotChecked where some are missing."""
    selection = (definition.over or {}) if values.side == "over" else definition.of
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
        elif "." in key or key in ("samples", "ranks", "setting"):
            parts.append(f"{key.rpartition('.')[2]} {value}")
        else:
            parts.append(" or ".join(spell(str(one)) for one in (value if isinstance(value, list) else [value])))
    return ", ".join(parts) or "any row"


def _absent(selection: Mapping[str, object], rows: Sequence[ClaimRow]) -> str:
    """Return which part of a selection the run has none of."""
    for key in ("loader", "workload", "rtt_ms"):
        if key in selection and not any(_matches(row, {key: selection[key]}) for row in rows):
            return f"the run has no {described({key: selection[key]}).removeprefix('at ')}"
    return f"the run has no row of {described(selection)}"


def _matches(row: ClaimRow, selection: Mapping[str, object]) -> bool:
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
