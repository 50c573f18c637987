"""What bars show: seconds, joules and throughput of each loader, distance and stage, of this run or of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from matplotlib.colors import to_rgb

from harness.report.distance import compare_distances, find_at_rtt, read_paper_figure, sum_kj
from harness.report.figures.definition import Bars
from harness.report.figures.style import FAINT, INK, MUTED, choose_colour
from harness.report.labels import factor, percent, ratio, regime_labels, rtt, significant
from harness.report.measurements import find_base
from harness.report.papers import Tree, find_values, low
from harness.report.summary import LoaderGroup, compute_median, compute_ratio, find, summarise
from harness.results.reader import Results

_MB_PER_GBIT: Final = 125.0
_LOADER_STEP: Final = 1.9
"""From the last distance of a loader to the first of the next, in steps between distances."""
_WIDTH: Final = 0.84
"""Of the bars of one loader at one distance together."""
_SHADES: Final = (FAINT, MUTED, INK)
"""Of the stages."""


@dataclass(frozen=True, slots=True, eq=False)
class LoaderBar:
    """A place on the axis: one loader at one distance, in one stage of training."""

    loader: str
    label: str
    """How the distance is written."""
    x: float
    width: float
    colour: tuple[float, ...]
    stage: int = 0
    group: LoaderGroup | None = None
    """The epochs of this run; None where there are none, and for a paper."""
    rtt_ms: float | None = None
    """The paper's round trip; None for this run."""

    @property
    def valid(self) -> bool:
        """Whether valid rows are behind it; a paper counts as valid."""
        return self.group is None or self.group.trusted


@dataclass(frozen=True, slots=True)
class BarValue:
    """What one bar shows of one measure."""

    height: float
    text: str
    """Written above the bar."""
    inside: str = ""
    """Written in the bar, or above it where the bar is short."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Heights by domain; empty for a bar of one colour."""
    estimated: frozenset[str] = frozenset()
    """Domains that are an estimate."""
    whisker: tuple[float, float] = (0.0, 0.0)
    """From the height down and up."""
    points: tuple[float, ...] = ()
    """The repeats."""
    firsts: tuple[float, ...] = ()
    """The cells' first epochs."""


def choose_workload(spec: Bars, results: Results) -> str:
    """Return the workload of the bars: the last stage, the one of the paper's figure, or the run's first one."""
    published = read_paper_figure(spec.values).workload if spec.by_distance else ""
    wanted = spec.stages[-1] if spec.stages else published
    return wanted if wanted in results.workloads else next(iter(results.workloads), "")


def make_bars(spec: Bars, results: Results) -> list[LoaderBar]:
    """Return the bars of this run, by loader, distance from near to far, and stage."""
    groups, labels = summarise(results), regime_labels(results)
    stages = spec.stages or (choose_workload(spec, results),)
    keys = [(loader, regime) for loader in results.readers or results.loaders for regime in results.regimes_of(loader)]
    bars = []
    for (loader, regime), x in zip(keys, _place(loader for loader, _ in keys), strict=True):
        tint = results.regimes.index(regime) / max(1, len(results.regimes) - 1)
        for stage, workload in enumerate(stages):
            group = find(groups, workload, regime, loader)
            base = _SHADES[stage % len(_SHADES)] if spec.stages else choose_colour(find_base(results, loader))
            colour = _tint(base, 1.0 if spec.stages else tint, faded=group is not None and not group.trusted)
            width = _WIDTH / len(stages)
            at = x + (stage - (len(stages) - 1) / 2) * width
            bars.append(LoaderBar(loader, labels[regime], at, width, colour, stage, group))
    return bars


def make_paper_bars(spec: Bars, results: Results) -> list[LoaderBar]:
    """Return the paper's bars; none where its text has no values by loader and distance."""
    if not spec.values or spec.stages:
        return []
    known = _list_paper_distances(spec, results)
    distances = sorted({rtt_ms for each in known.values() for rtt_ms in each})
    keys = [(loader, rtt_ms) for loader, each in known.items() for rtt_ms in each]
    return [
        LoaderBar(
            loader,
            rtt(rtt_ms) if rtt_ms else "local",
            x,
            _WIDTH,
            _tint(choose_colour(loader), distances.index(rtt_ms) / max(1, len(distances) - 1)),
            rtt_ms=rtt_ms,
        )
        for (loader, rtt_ms), x in zip(keys, _place(loader for loader, _ in keys), strict=True)
    ]


def _list_paper_distances(spec: Bars, results: Results) -> Mapping[str, Sequence[float]]:
    """Return the paper's distances by loader.

    Of a figure by distance: the run's loaders at the distances that both have, or at all of the paper's. Of other
    figures: all of the paper's loaders, those of the run first.
    """
    if not spec.by_distance:
        values = _paper_values(spec)
        loaders = [
            *(one for one in results.loaders if one in values),
            *(one for one in values if one not in results.loaders),
        ]
        return {loader: [float(key) for key in values[loader]] for loader in loaders}
    published = read_paper_figure(spec.values)
    if choose_workload(spec, results) != published.workload:
        return {}
    matching = (published.matching_rtt_ms(results, regime) for regime in results.regimes)
    shared = [rtt_ms for rtt_ms in dict.fromkeys(matching) if rtt_ms is not None] or published.rtt_ms
    known = {loader: published.epoch_s[loader] for loader in results.loaders if loader in published.epoch_s}
    return {loader: [rtt_ms for rtt_ms in shared if rtt_ms in values] for loader, values in known.items()}


def _place(loaders: Iterable[str]) -> list[float]:
    """Return places on the axis side by side, with a gap between loaders."""
    places: list[float] = []
    last = ""
    for loader in loaders:
        places.append(0.0 if not places else places[-1] + (1.0 if loader == last else _LOADER_STEP))
        last = loader
    return places


def _tint(colour: str, distance: float, *, faded: bool = False) -> tuple[float, ...]:
    """Return a colour, lighter for near regimes (`distance` 0 to 1) and for rows that are not valid."""
    strength = (0.45 + 0.55 * distance) * (0.55 if faded else 1.0)
    return tuple(1 - (1 - part) * strength for part in to_rgb(colour))


def read_values(spec: Bars, results: Results, measure: str, bars: Sequence[LoaderBar]) -> list[BarValue | None]:
    """Return what each bar shows of a measure; None where it is not known."""
    if measure == "seconds":
        return [_read_seconds(spec, bar) for bar in bars]
    if measure == "joules":
        scale = find_joule_scale(bars)
        return [_read_joules(spec, bar, scale) for bar in bars]
    if measure == "joules_per_gb":
        return [_read_joules_per_gb(bar) for bar in bars]
    if measure == "slowdown":
        return _read_slowdowns(spec, results, bars)
    fixed = find_fixed(spec, results)
    return [_read_share(spec, results, bar, fixed) for bar in bars]


def find_joule_scale(bars: Sequence[LoaderBar]) -> float:
    """Return 1000 where joules are written in kJ, else 1."""
    ours = [bar.group.drawn_j.median for bar in bars if bar.group and bar.group.drawn_j]
    return 1.0 if ours and max(ours) < 1e4 else 1e3


def _read_seconds(spec: Bars, bar: LoaderBar) -> BarValue | None:
    if bar.rtt_ms is not None:
        time_s = read_paper_figure(spec.values).epoch_s[bar.loader][bar.rtt_ms]
        return BarValue(time_s, significant(time_s))
    if bar.group is None or bar.group.time_s is None:
        return None
    stat, first = bar.group.time_s, bar.group.first_s
    firsts = first.values if first and not spec.stages else ()
    return BarValue(stat.median, significant(stat.median), points=stat.values, firsts=firsts)


def _read_slowdowns(spec: Bars, results: Results, bars: Sequence[LoaderBar]) -> list[BarValue | None]:
    """Return how many times as long as at the nearest distance an epoch takes, of a paper from its seconds."""
    if any(bar.rtt_ms is not None for bar in bars):
        times = [(bar.loader, read_paper_figure(spec.values).epoch_s[bar.loader][bar.rtt_ms or 0.0]) for bar in bars]
        nearest = dict(reversed(times))
        return [
            BarValue(time_s / nearest[loader], factor(time_s / nearest[loader]).rstrip("×")) for loader, time_s in times
        ]
    found = compare_distances(results, summarise(results), choose_workload(spec, results))
    ours = {(one.loader, one.regime): one.ours for one in found}
    values: list[BarValue | None] = []
    for bar in bars:
        one = ours.get((bar.loader, bar.group.regime)) if bar.group else None
        is_nearest = bar.group is not None and bar.group.regime == results.regimes[0] and bar.group.time_s is not None
        values.append(
            BarValue(one.value, ratio(one).rstrip("×")) if one else BarValue(1.0, "1.00") if is_nearest else None
        )
    return values


def _read_joules(spec: Bars, bar: LoaderBar, scale: float) -> BarValue | None:
    if bar.rtt_ms is not None:
        energy = read_paper_figure(spec.values).energy_kj.get(bar.loader, {}).get(bar.rtt_ms, {})
        return _read_paper_joules(energy) if energy else None
    if bar.group is None or bar.group.drawn_j is None:
        return None
    total, error = bar.group.drawn_j.median / scale, bar.group.whole_error_j / scale
    parts = {domain: joules / scale for domain, joules in bar.group.domain_j.items()}
    whisker = (0.0, 0.0) if spec.stages else (error, error)
    return BarValue(total, significant(total), parts=parts, estimated=bar.group.estimated, whisker=whisker)


def _read_paper_joules(energy: Mapping[str, Tree]) -> BarValue:
    """Return the paper's kilojoules; DRAM that its text only bounds is in the whisker alone."""
    least, greatest = sum_kj(energy)
    parts = {domain: low(one) for domain, one in energy.items() if domain != "dram" or least == greatest}
    text = f"{least:.0f}–{greatest:.0f}" if greatest > least else significant(least)
    return BarValue(least, text, parts=parts, whisker=(0.0, greatest - least))


def _read_joules_per_gb(bar: LoaderBar) -> BarValue | None:
    total = compute_joules_per(bar.group, "bytes", 1e6)
    if bar.group is None or bar.group.drawn_j is None or total is None:
        return None
    scale = total / bar.group.drawn_j.median
    parts = {domain: joules * scale for domain, joules in bar.group.domain_j.items()}
    whisker = (bar.group.whole_error_j * scale,) * 2
    return BarValue(total, significant(total, 2), parts=parts, estimated=bar.group.estimated, whisker=whisker)


def compute_joules_per(group: LoaderGroup | None, unit: str, scale: float) -> float | None:
    """Return the joules of an epoch for every `scale` bytes or samples, `unit`, of it; None where they are unknown."""
    if group is None or group.drawn_j is None:
        return None
    count = compute_median(group.rows, lambda row: getattr(row, unit))
    return group.drawn_j.median * scale / count if count else None


def _read_share(spec: Bars, results: Results, bar: LoaderBar, fixed: LoaderGroup | None) -> BarValue | None:
    share, rate = compute_share(spec, results, bar, fixed), compute_rate(spec, bar)
    if share is None:
        return None
    return BarValue(share, percent(share).removesuffix(" %"), inside="" if rate is None else significant(rate))


def compute_share(spec: Bars, results: Results, bar: LoaderBar, fixed: LoaderGroup | None) -> float | None:
    """Return the throughput of a bar over the bound; None where either is unknown."""
    if bar.rtt_ms is not None:
        value = find_at_rtt(_paper_values(spec)[bar.loader], bar.rtt_ms)
        return None if value is None else value / (low(spec.link) if spec.link else 1.0)
    if bar.group is None:
        return None
    if "share_of_link" in spec.measures:
        link = _find_link_mb_per_s(results, bar.group.regime)
        return None if link is None or bar.group.mb_per_s is None else bar.group.mb_per_s / link
    ratio = compute_ratio(bar.group, fixed, "samples_per_s")
    return None if ratio is None else ratio.value


def compute_rate(spec: Bars, bar: LoaderBar) -> float | None:
    """Return MB/s where the bound is the link's, else samples/s; None where they are unknown."""
    if bar.rtt_ms is not None:
        return find_at_rtt(_paper_values(spec)[bar.loader], bar.rtt_ms) if spec.link else None
    if bar.group is None or "share_of_link" in spec.measures:
        return None if bar.group is None else bar.group.mb_per_s
    return compute_median(bar.group.rows, lambda row: row.samples_per_s)


def find_fixed(spec: Bars, results: Results) -> LoaderGroup | None:
    """Return the loader that reads nothing in an epoch: its rate is the same in every regime, so it runs in one."""
    groups, bound = summarise(results), next(iter(results.bounds), None)
    found = (find(groups, choose_workload(spec, results), regime, bound) for regime in results.regimes)
    return next((group for group in found if group is not None and group.measured), None)


def describe_bounds(spec: Bars, results: Results) -> str:
    """Return the bound of throughput in numbers."""
    if "share_of_link" in spec.measures:
        rates = dict.fromkeys(_find_link_mb_per_s(results, regime) for regime in results.regimes)
        return ", ".join(f"{rate:g} MB/s" for rate in rates if rate is not None)
    fixed = find_fixed(spec, results)
    rate = compute_median(fixed.rows, lambda row: row.samples_per_s) if fixed else None
    return "unknown" if rate is None else f"{significant(rate)} samples/s"


def _find_link_mb_per_s(results: Results, regime: str) -> float | None:
    """Return the rate of a regime's link; for local files that of the run's first link."""
    rates = [results.experiment.regimes[key].rate_gbit for key in (regime, *results.regimes)]
    return next((rate * _MB_PER_GBIT for rate in rates if rate is not None), None)


def _paper_values(spec: Bars) -> Mapping[str, Mapping[str, Tree]]:
    """Return the paper's values by loader and round trip."""
    found = find_values(spec.values)
    found = found if isinstance(found, Mapping) else {}
    return {loader: values for loader, values in found.items() if isinstance(values, Mapping)}
