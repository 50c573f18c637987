"""The run in a sentence and a card per loader: what distance did to its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.distance import compare_distances
from harness.report.intervals import Ratio
from harness.report.labels import factor, joules, ratio, regime_labels, seconds, span, spell
from harness.report.summary import Group, find
from harness.results.reader import Results

_MOST_NAMED = 4
"""Of more loaders than these only the quickest and the slowest are named."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One regime's epoch time on a card."""

    label: str
    text: str
    share: float
    """Of the longest bar of all cards, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Card:
    """One loader's finding."""

    loader: str
    figure: str
    """The number that counts: the slowdown to the farthest regime, or the time where there is one regime."""
    meaning: str
    bars: tuple[Bar, ...]
    energy: str
    trusted: bool


def write_headline(results: Results, groups: Sequence[Group]) -> str:
    """Return what the run found, in a sentence or two."""
    measured = [group for group in groups if group.time_s and group.loader in results.readers]
    if not results.rows and any(cell.state == "done" for cell in results.cells):
        return "Cells ended, but there is no epochs.csv: the run ended before its rows were written."
    if not measured:
        return "No epoch was measured."
    workload = measured[0].workload
    labels = regime_labels(results)
    if not any(group.trusted for group in measured):
        return "No epoch passed every validity rule: nothing below is a result."
    far = [one for one in compare_distances(results, groups, workload) if one.regime == results.regimes[-1]]
    known = sorted(
        ((one.ours, one.loader) for one in far if one.ours is not None and one.ours.trusted),
        key=lambda pair: pair[0].value,
    )
    if known:
        way = _way(labels[far[0].near], labels[far[0].regime])
        parts = [f"{ratio(value).rstrip('×')} {_sureness(value)} with {spell(loader)}" for value, loader in known]
        return f"Going {way} multiplies the epoch time by {_join(parts)}."
    nearest = [group for group in measured if group.trusted and group.workload == workload]
    regime = nearest[0].regime
    here = [(group, group.time_s.median) for group in nearest if group.regime == regime and group.time_s]
    all_single = all(group.repeats == 1 for group, _ in here)
    times = []
    for group, median in sorted(here, key=lambda one: one[1]):
        single = " (one repeat)" if group.repeats == 1 and not all_single else ""
        times.append((spell(group.loader), f"{_unbroken(seconds(median))}{single}"))
    takes = f"{_place(labels[regime]).capitalize()}, an epoch{_of(results, workload)} takes"
    takes += " in one repeat" if all_single else ""
    if len(times) > _MOST_NAMED:
        (quick, least), (slow, most) = times[0], times[-1]
        return f"{takes} from {least} with {quick} to {most} with {slow}."
    return f"{takes}: {_join([f'{name} {time}' for name, time in times])}."


def make_cards(results: Results, groups: Sequence[Group], workload: str) -> tuple[Card, ...]:
    """Return a card per loader that reads and has an epoch."""
    here = [group for group in groups if group.workload == workload and group.time_s]
    longest = max((group.time_s.median for group in here if group.time_s), default=1.0)
    made = (_card(results, groups, workload, loader, longest) for loader in results.readers)
    return tuple(card for card in made if card is not None)


def _card(results: Results, groups: Sequence[Group], workload: str, loader: str, longest: float) -> Card | None:
    labels = regime_labels(results)
    found = [find(groups, workload, regime, loader) for regime in results.regimes]
    known = [(group, group.time_s) for group in found if group and group.time_s]
    if not known:
        return None
    bars = tuple(_bar(labels[group.regime], group, longest) for group in found if group)
    group, stat = known[0]
    last = known[-1][0]
    figure, meaning = seconds(stat.median), f"per epoch {_place(labels[group.regime])}"
    for one in compare_distances(results, groups, workload):
        if one.loader == loader and one.regime == results.regimes[-1] and one.ours is not None:
            figure = ratio(one.ours)
            meaning = f"epoch time {_way(labels[one.near], labels[one.regime])} {_sureness(one.ours)}"
            if one.paper is not None:
                meaning += f" (paper {factor(one.paper)})"
    ends = (group,) if len(known) == 1 else (group, last)
    energies = [joules(part.total_j.median) for part in ends if part.total_j]
    estimate = " (estimate)" if group.estimated or last.estimated else ""
    energy = f"{' → '.join(energies)} per epoch{estimate}" if energies else ""
    return Card(spell(loader), figure, meaning, bars, energy, all(part.trusted for part, _ in known))


def _bar(label: str, group: Group, longest: float) -> Bar:
    if group.time_s is None:
        return Bar(label, "failed" if group.failed else "not run", 0.0)
    return Bar(label, seconds(group.time_s.median), group.time_s.median / longest)


def _of(results: Results, workload: str) -> str:
    return f" of {spell(workload)}" if len(results.workloads) > 1 else ""


def _place(label: str) -> str:
    return "on local files" if label == "local" else f"at {label}"


def _way(near: str, far: str) -> str:
    return f"from {'local files' if near == 'local' else _unbroken(near)} to {_unbroken(far)}"


def _sureness(found: Ratio) -> str:
    """Return how sure a ratio is, in brackets."""
    if found.interval is None:
        return "(one repeat)"
    return f"(within noise, {span(found)})" if found.is_noise else f"({span(found)})"


def _unbroken(quantity: str) -> str:
    """Keep a number and its unit on one line."""
    return quantity.replace(" ", "\u00a0")


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
