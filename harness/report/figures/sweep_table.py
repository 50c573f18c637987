"""The tables beside a sweep: by loader and setting, by panel over settings, or by workload and setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from harness.report.figures.definition import NO_WAIT, Panel, Sweep
from harness.report.figures.sweep_values import (
    divide_by,
    find_bound,
    find_paper,
    make_model,
    read_epochs,
    read_lines,
    write_measure,
    write_value,
)
from harness.report.labels import UNKNOWN, percent, ratio, spell
from harness.report.measurements import compare_frames
from harness.report.papers import find_table, low
from harness.results.reader import Results
from joulefeed.table import Table


def make_table(spec: Sweep, results: Results) -> Table | None:
    """Return the medians; None when no sweep was measured."""
    if spec.table == "loaders":
        return _by_loader(spec, results)
    frame = read_lines(spec, results)
    if frame.empty:
        return None
    return _by_setting(spec, results, frame) if spec.table == "settings" else _by_workload(spec, results, frame)


def read_paper_lines(path: str) -> dict[str, dict[float, float]]:
    """Return a paper's values by loader and setting."""
    return {
        loader: {float(setting): low(value) for setting, value in find_table(f"{path}/{loader}").items()}
        for loader in (find_table(path) if path else ())
    }


def _by_loader(spec: Sweep, results: Results) -> Table | None:
    """Return a row a loader in one setting, with the measures that `columns` names."""
    frame, bound = read_epochs(spec, results), find_bound(spec, results)
    if frame.empty:
        return None
    rows = []
    for _, part in frame.groupby("loader", sort=False):
        median = part[part["later"]].median(numeric_only=True)
        first = part[part["epoch"] == part["epoch"].min()].median(numeric_only=True)
        cells = [spell(str(part["base"].iloc[0])), UNKNOWN if pd.isna(median["setting"]) else f"{median['setting']:g}"]
        for column in spec.columns.values():
            metric = column.removeprefix("first ")
            cells.append(write_measure(metric, float((first if metric != column else median)[metric])))
        cells += [percent(float(median[spec.panels[0].metric]) / one) for one in bound.values()]
        rows.append(tuple(cells))
    heads = (spec.corner, spec.x.partition(":")[0], *spec.columns, *(["of the bound"] if bound else []))
    return Table(heads, tuple(rows))


def _by_workload(spec: Sweep, results: Results, frame: pd.DataFrame) -> Table:
    """Return a row a workload and setting over the loaders."""
    panel, bases = spec.panels[0], list(dict.fromkeys(frame["base"]))
    medians = frame.groupby(["workload", "setting", "base"], sort=False)[panel.metric].median()
    places = dict.fromkeys(zip(frame["workload"], frame["setting"], strict=True))
    rows = [
        (
            f"{spell(workload)}, {setting:g}",
            *(write_value(panel, medians.get((workload, setting, base))) for base in bases),
        )
        for workload, setting in sorted(places, key=lambda place: (results.workloads.index(place[0]), place[1]))
    ]
    return Table((spec.corner, *map(spell, bases)), tuple(rows))


def _by_setting(spec: Sweep, results: Results, frame: pd.DataFrame) -> Table:
    """Return rows over the settings: of each panel the loaders, the bound, the model and the paper."""
    theirs = read_paper_lines(spec.values)
    settings = sorted({*frame["setting"].unique(), *(setting for known in theirs.values() for setting in known)})
    rows: list[tuple[str, ...]] = []
    dim: set[int] = set()
    for panel in spec.panels:
        named = f", {panel.row}" if panel.row else ""
        for names, part in _split(spec, frame, panel):
            rows.append((f"{names}{named}", *_write_row(panel, frame, part, settings), *_write_gain(spec, part)))
        rows += _list_bound_rows(spec, results, frame, panel, settings)
        for place, (name, values) in enumerate(_list_beside(spec, results, frame, panel).items(), start=len(rows)):
            dim.add(place)
            rows.append((name, *(write_value(panel, values.get(one)) for one in settings)))
    for loader, known in theirs.items():
        dim.add(len(rows))
        rows.append((f"{spell(loader)}, paper", *(write_value(spec.panels[0], known.get(one)) for one in settings)))
    heads = (spec.corner, *(spec.head.format(setting) for setting in settings), *([spec.gain] if spec.gain else []))
    return Table(heads, [row for row in rows if set(row[1:]) != {UNKNOWN}], dim=frozenset(dim))


def _split(spec: Sweep, frame: pd.DataFrame, panel: Panel) -> list[tuple[str, pd.DataFrame]]:
    """Return the names and epochs of a panel's rows: by loader, and by workload where panels are."""
    keys = ["base"] if spec.by == "metric" else ["base", "workload"]
    parts = [(tuple(map(str, key)), part) for key, part in frame.groupby(keys, sort=False)]
    over = f"{spell(panel.over)} over " if panel.over else ""
    return [(over + ", ".join(map(spell, key)), part) for key, part in parts if key[0] != panel.over]


def _write_row(panel: Panel, frame: pd.DataFrame, part: pd.DataFrame, settings: Sequence[float]) -> list[str]:
    if panel.over:
        baseline = frame[frame["base"] == panel.over]
        pairs = [(baseline[baseline["setting"] == one], part[part["setting"] == one]) for one in settings]
        return [ratio(compare_frames(*pair)) for pair in pairs]
    medians = divide_by(part, panel).groupby("setting")["value"].median()
    return [write_value(panel, medians.get(one)) for one in settings]


def _write_gain(spec: Sweep, part: pd.DataFrame) -> list[str]:
    """Return what the best setting gains over the first one, where the figure has a column of it."""
    known = part.groupby("setting", sort=False)[spec.panels[0].metric].median().tolist()
    return [percent(1 - min(known) / known[0]) if len(known) > 1 else UNKNOWN] if spec.gain else []


def _list_bound_rows(
    spec: Sweep, results: Results, frame: pd.DataFrame, panel: Panel, settings: Sequence[float]
) -> list[tuple[str, ...]]:
    """Return the row of what an epoch takes if no worker ever waits, or of how many times that `over` takes."""
    if spec.bound != NO_WAIT:
        return []
    bound, name = find_bound(spec, results), "no worker ever waits"
    if not panel.over:
        return [(f"{name}, {panel.row}", *(write_value(panel, bound.get(one)) for one in settings))]
    medians = frame[frame["base"] == panel.over].groupby("setting")[panel.metric].median()
    known = {one: medians[one] / bound[one] for one in settings if one in bound and one in medians}
    return [(f"{spell(panel.over)} over {name}", *(write_value(panel, known.get(one)) for one in settings))]


def _list_beside(
    spec: Sweep, results: Results, frame: pd.DataFrame, panel: Panel
) -> Mapping[str, Mapping[float, float]]:
    """Return the values of the model and of the paper by setting."""
    found: dict[str, Mapping[float, float]] = {}
    for workload in dict.fromkeys(frame["workload"]) if spec.model and panel.metric == "utilisation" else ():
        model = make_model(results, workload)
        if model is not None:
            name = f"    model, {spell(workload)}" if spec.by == "workload" else "    model"
            found[name] = {one: panel.scale * model.predict(one) for one in sorted(frame["setting"].unique())}
    paper = {setting: value for setting, value in find_paper(panel).items() if setting is not None}
    return {**found, "    paper": paper} if paper else found
