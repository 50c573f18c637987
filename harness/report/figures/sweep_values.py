"""The values of a sweep: measures of swept loaders by setting, with a bound, a model and a paper; and their tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pandas as pd

from harness.report.figures.definition import NO_WAIT, Panel, Sweep
from harness.report.figures.marks import compute_medians
from harness.report.labels import UNKNOWN, megabytes, percent, ratio, regime_labels, seconds, significant, spell
from harness.report.measurements import compare_frames, epochs, mark_settled, trusted, work
from harness.report.papers import find_table, find_values, low
from harness.results.reader import Results
from harness.workloads.overlap import simulate, workers_to_hide
from harness.workloads.published import STEPS
from joulefeed.table import Table

_BASELINE: Final = "pytorch"
BySetting: TypeAlias = Mapping[float | None, float]
"""Values by setting; by None one for all settings."""
_KEYS: Final = ["workload", "base", "setting", "loader", "cell_id"]


def read_epochs(spec: Sweep, results: Results) -> pd.DataFrame:
    """Return the trusted epochs with `setting` and derived measures; `later` says that an epoch started no worker.

    They are of the first workload where panels are of metrics and workloads are no settings.
    """
    frame = epochs(results)
    if spec.by == "metric" and not spec.setting:
        frame = frame[frame["workload"] == next(iter(results.workloads), "")]
    if spec.setting:
        workloads = results.experiment.workloads.items()
        known = {key: float(one.params[spec.setting]) for key, one in workloads if spec.setting in one.params}
        frame = frame[frame["workload"].isin(list(known)) & ~frame["loader"].isin(results.bounds)]
        frame = frame.assign(setting=spec.setting_scale * frame["workload"].map(known).astype("float64"))
    frame = trusted(frame)
    return frame.assign(
        ms_per_sample=1e3 * frame["duration_s"] / frame["samples"],
        place=frame["regime"].map(regime_labels(results)),
        cpu_ms_per_sample=1e3 * frame["cell_cpu_s"] / frame["samples"],
        first_batch_from_start_s=frame["setup_s"] + frame["first_batch_s"],
        utilisation=1 - frame["stall_s"] / frame["duration_s"],
        later=mark_settled(frame),
    )


def read_lines(spec: Sweep, results: Results) -> pd.DataFrame:
    """Return the rows that are drawn, by loader and setting."""
    frame = read_epochs(spec, results)
    frame = frame[frame["setting"].notna() & (frame["base"] != spec.bound)]
    if not spec.setting:
        order = {base: place for place, base in enumerate(dict.fromkeys(frame["base"]))}
        frame = frame.sort_values(["base", "setting"], key=lambda part: part.replace(order), kind="stable")
    if spec.epochs == "later":
        return frame[frame["later"]]
    if spec.epochs == "first":
        return frame[frame["setup_s"].notna()]
    return _sum_trainings(frame, spec.panels[0].metric) if spec.epochs == "training" else frame


def _sum_trainings(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row a cell with the sum of its epochs."""
    sums = {metric: (metric, "sum"), "valid": ("valid", "all"), "counted": ("epoch", "count")}
    summed = frame.groupby(_KEYS, sort=False).agg(**sums).reset_index()
    # A cell of which some epochs do not count took longer than the sum of the others.
    return summed[summed["counted"] == summed.groupby("workload")["counted"].transform("max")]


def find_bound(spec: Sweep, results: Results, workload: str = "") -> BySetting:
    """Return the bound of the first panel's measure by setting, or by None where it is the same for all; empty without.

    It is the median of the loader that reads nothing, or of another one without a setting, or the time that an epoch
    takes if no worker ever waits. `workload` is that of the panel, where panels are of workloads.
    """
    frame = read_epochs(spec, results)
    if spec.by == "workload" and workload:
        frame = frame[frame["workload"] == workload]
    if spec.bound == NO_WAIT:
        return _sum_work(frame, results)
    known = frame.loc[(frame["base"] == spec.bound) & frame["later"], spec.panels[0].metric]
    return {} if known.empty else {None: float(known.median())}


def _sum_work(frame: pd.DataFrame, results: Results) -> BySetting:
    """Return the time of all samples over the number of PyTorch's workers, in s by setting."""
    baseline, times = results.experiment.loaders.get(_BASELINE), work(results)
    given = None if baseline is None else baseline.params.get("num_workers")
    workers = given if isinstance(given, int) else 0
    if not workers or times.empty:
        return {}
    epoch = frame.loc[(frame["base"] == _BASELINE) & frame["later"], ["cell_id", "epoch", "setting"]]
    totals = times.merge(epoch, on=["cell_id", "epoch"]).groupby(["setting", "cell_id", "epoch"])["work_s"].sum()
    medians = totals.groupby("setting").median() / workers
    return dict(zip(medians.index.to_numpy("float64").tolist(), medians.tolist(), strict=True))


def divide_by(frame: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Return a frame with the panel's measure in `value`: scaled, or the median of `over` at the setting over it."""
    if not panel.over:
        return frame.assign(value=panel.scale * frame[panel.metric]).dropna(subset=["value"])
    theirs = compute_medians(frame[frame["base"] == panel.over], panel.metric)
    others = frame[(frame["base"] != panel.over) & frame["setting"].isin(list(theirs))]
    return others.assign(value=others["setting"].map(theirs).astype("float64") / others[panel.metric])


def find_paper(panel: Panel) -> BySetting:
    """Return a paper's values by setting, by None where there is one for all settings; empty without."""
    if not panel.paper:
        return {}
    found = find_values(panel.paper)
    if not isinstance(found, Mapping):
        return {None: low(found)}
    return {float(setting): panel.paper_scale * low(value) for setting, value in found.items()}


def write_value(panel: Panel, value: float | None) -> str:
    """Write a value of a panel's measure."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return panel.text.format(value) if panel.text else write_measure(panel.metric, float(value) / panel.scale)


def write_measure(metric: str, value: float) -> str:
    """Write a value of a column by what its name says of its unit."""
    if math.isnan(value):
        return UNKNOWN
    if metric == "duration_s":
        return seconds(value)
    if metric.endswith("_bytes"):
        return megabytes(value)
    return percent(value) if metric.endswith("_util") else significant(value)


@dataclass(frozen=True, slots=True)
class OverlapModel:
    """The textbook's model of one workload, whose samples and steps only wait (harness.workloads.overlap)."""

    load_s: float
    compute_s: float
    steps: int
    cap: int | None
    """Loads that may overlap; None for all of them."""

    @property
    def words(self) -> Mapping[str, object]:
        """Words for a panel's templates; `knee` is the number of workers that would hide loading."""
        ratio, knee = significant(self.load_s / self.compute_s, 2), workers_to_hide(self.load_s, self.compute_s)
        return {
            "load_ms": f"{1e3 * self.load_s:g}",
            "step_ms": f"{1e3 * self.compute_s:g}",
            "ratio": ratio,
            "knee": knee,
            "cap": self.cap,
            "steps": self.steps,
        }

    def predict(self, workers: float, *, capped: bool = True) -> float:
        """Return the utilisation with so many workers, 0 to 1; `capped` is whether loads are kept from overlapping."""
        cap = self.cap if capped else None
        return simulate(self.load_s, self.compute_s, workers=int(workers), steps=self.steps, cap=cap).utilisation


def make_model(results: Results, workload: str) -> OverlapModel | None:
    """Return the model of a workload; None for one that is not of the textbook's kind, or without an epoch."""
    accelerator, params = results.experiment.accelerator, results.experiment.workloads[workload].params
    step, load_ms = STEPS.get(("textbook", accelerator.model)), params.get("load_ms")
    samples = next((row.samples for row in results.rows if row.workload == workload and row.samples), None)
    if step is None or load_ms is None or samples is None:
        return None
    batch_size, cap = int(params.get("batch_size") or 1), params.get("overlapping_loads")
    compute_s = step.seconds_per_sample * batch_size * accelerator.time_scale
    return OverlapModel(float(load_ms) / 1e3, compute_s, -(-samples // batch_size), None if cap is None else int(cap))


def table(spec: Sweep, results: Results) -> Table | None:
    """Return the medians; None when no sweep was measured."""
    if spec.table == "loaders":
        return _by_loader(spec, results)
    frame = read_lines(spec, results)
    if frame.empty:
        return None
    return _by_setting(spec, results, frame) if spec.table == "settings" else _by_workload(spec, results, frame)


def count_round_trips(frame: pd.DataFrame) -> float | None:
    """Return the round trips that a file takes one reader, of the epochs of fewest readers in the farthest regime.

    None without such an epoch.
    """
    far = frame[frame["rtt_ms"] == frame["rtt_ms"].max()]
    few = far[far["setting"] == far["setting"].min()]
    found = (few["ms_per_sample"] * few["setting"] / few["rtt_ms"]).median()
    return None if math.isnan(found) or math.isinf(found) else float(found)


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
    theirs = read_paper_lines(spec.values) if spec.by != "regime" else {}
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
    return Table(heads, tuple(rows), dim=frozenset(dim))


def _split(spec: Sweep, frame: pd.DataFrame, panel: Panel) -> list[tuple[str, pd.DataFrame]]:
    """Return the names and epochs of a panel's rows: by loader, and by workload where panels are."""
    keys = {"metric": ["base"], "regime": ["base", "place"]}.get(spec.by, ["base", "workload"])
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
    bound, name = find_bound(spec, results), "no worker ever waits"
    if spec.bound != NO_WAIT or not bound:
        return []
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
