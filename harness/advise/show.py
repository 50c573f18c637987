"""Advice in the terminal, as JSON and as a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from harness.advise.model import Candidate, Decision, Findings, Limit, what_would_change
from harness.advise.question import BOUND
from harness.diagnose.figure import draw_stages
from harness.diagnose.verdict import find_slowest, format_ms, make_cheaper, name_shares
from harness.report.figures.marks import make_sheet, write_note
from harness.report.figures.style import FAINT, INK, MUTED, choose_colour
from harness.report.labels import UNKNOWN, joules, megabytes, percent, seconds, significant, spell
from joulefeed.table import Table, TableCell, TableColumn, print_table

_SHOWN: Final = 3
_LIMITS: Final[Mapping[Limit, str]] = {
    "step": "the step",
    "processors": "processors",
    "link": "the link's rate",
    "readers": "number of readers",
}


def print_advice(found: Findings, outcome: Decision, console: Console) -> None:
    """Print head-room, the best configurations, what to change, and what would change the answer."""
    console.print("\n".join(_head(found)), highlight=False, markup=False, soft_wrap=True)
    if found.ranked:
        console.print()
        print_table(_table(found), console)
    console.print()
    style = {"change": "bold green", "leave it": "bold", "cannot say": "bold yellow"}[outcome]
    first, *rest = _answer(found, outcome)
    console.print(first, style=style, highlight=False, markup=False, soft_wrap=True)
    console.print("\n".join(rest), highlight=False, markup=False, soft_wrap=True)


def to_json(found: Findings, outcome: Decision) -> dict[str, Any]:
    """Return all that is shown, and the probes, as JSON types."""
    place, scatter = found.place, found.scatter
    return {
        "outcome": outcome,
        "objective": found.objective,
        "command": found.command,
        "bound_s": place.step_s * place.batches,
        "place": {"cores": place.cores, "rtt_s": place.rtt_s, "batches": place.batches, "step_s": place.step_s},
        "scatter": scatter,
        "configurations": [
            {
                "loader": one.choice.loader,
                "arguments": dict(one.choice.arguments),
                "epoch_s": one.epoch_s(place, scatter)._asdict(),
                "joules": None if (j := one.joules(place, scatter)) is None else j._asdict(),
                "limit": one.limit(place),
                "bounds_s": one.bounds(place)._asdict(),
                "rss_bytes": one.rss_bytes,
                "probes_s": [probe.epoch_s for probe in one.probes],
            }
            for one in found.ranked
        ],
        "stages": [asdict(stage) for stage in found.stages],
        "spoiled": found.spoiled,
        "refused": dict(found.refused),
        "notes": found.notes,
        "seconds": found.seconds,
    }


def _head(found: Findings) -> list[str]:
    place = found.place
    took = f"probed for {found.seconds:.0f} s"
    lines = [f"{found.subject}, {place.cores} cores, {place.batches} batches an epoch; {took}"]
    if found.stages:
        takes = format_ms(sum(stage.batch_s for stage in found.stages))
        lines.append(f"preparing a batch takes {takes} in one process: {name_shares(found.stages)}")
    incumbent = found.incumbent
    if incumbent is not None and place.step_s:
        now, bound = incumbent.epoch_s(place, found.scatter), place.step_s * place.batches
        room = max(0.0, 1 - bound / now.value)
        lines.append(
            f"head-room: {spell(incumbent.choice.key)} takes {seconds(now.value)} an epoch, and training without "
            f"loading {seconds(bound)}: at best {percent(room)} less"
        )
    return lines


def _table(found: Findings) -> Table:
    incumbent = found.incumbent
    shown = found.ranked[:_SHOWN]
    if incumbent is not None and incumbent not in shown:
        shown.append(incumbent)
    rows: list[list[TableCell | str]] = []
    for one in shown:
        time_s, energy = one.epoch_s(found.place, found.scatter), one.joules(found.place, found.scatter)
        name, limit = spell(one.choice.loader), one.limit(found.place)
        rows.append(
            [
                TableCell(f"{name} (in use)" if one == incumbent else name, "strong"),
                ", ".join(f"{key}={value}" for key, value in one.choice.arguments.items()) or "as its config has them",
                f"{significant(time_s.value)} s",
                f"{significant(time_s.low)} to {significant(time_s.high)}",
                UNKNOWN if energy is None else joules(energy.value) + " (estimate)" * _is_estimate(one),
                "waiting for data" if limit == "readers" and one.readers is None else _LIMITS[limit],
                megabytes(one.rss_bytes),
            ]
        )
    heads = [
        TableColumn("", left=True),
        TableColumn("settings", left=True, wraps=True),
        TableColumn("epoch"),
        TableColumn("90 %"),
        TableColumn("joules"),
        TableColumn("limited by", left=True),
        TableColumn("memory", optional=1),
    ]
    return Table(heads, rows, [f"predicted for an epoch of {found.place.batches} batches from shorter ones"])


def _is_estimate(one: Candidate) -> bool:
    return any(probe.is_estimate for probe in one.probes)


def _answer(found: Findings, outcome: Decision) -> list[str]:
    if outcome == "cannot say":
        why = [f"  {spell(key)}: {reason}" for key, reason in found.spoiled.items()] + [f"  {n}" for n in found.notes]
        return ["cannot say: the probes that decide were spoiled", *why]
    place, objective = found.place, found.objective
    best, incumbent = found.ranked[0], found.incumbent
    assert incumbent is not None
    lines = [f"leave it: nothing that was probed is better than {spell(incumbent.choice.key)} beyond chance"]
    if outcome == "change":
        after = best.score(place, objective, found.scatter).value
        gain = 1 - after / incumbent.score(place, objective, found.scatter).value
        what = {"time": "time", "joules": "joules", "edp": "joules times seconds"}[objective]
        lines = [
            f"change to {spell(best.choice.loader)}: {percent(gain)} less {what}",
            "",
            *(f"  {line}" for line in found.paste(best.choice)),
        ]
    lines.append("")
    if found.stages and best.limit(place) == "processors":
        slowest = find_slowest(found.stages)
        lines += [f"{slowest.name} takes most of the processors. {text}" for text in make_cheaper(slowest)]
    for name, (first, time_s) in what_would_change(found.ranked, place, objective).items():
        stays = "stays first" if first.choice == best.choice else "would be first"
        lines.append(f"with {name}: {spell(first.choice.key)} {stays}, about {seconds(time_s.value)} an epoch")
    lines += [f"not probed: {spell(name)}: {why}" for name, why in found.refused.items()]
    lines += [f"no valid probe: {spell(key)}: {why}" for key, why in found.spoiled.items() if key != BOUND]
    return lines


def describe_verified(found: Findings, verified: Mapping[str, float]) -> list[str]:
    """Return a line for each choice whose whole epochs were measured: how far its prediction was off."""
    lines = []
    for one in found.ranked:
        if (actual := verified.get(one.choice.key)) is not None:
            said = one.epoch_s(found.place, found.scatter)
            inside = "inside" if said.low <= actual <= said.high else "outside"
            lines.append(
                f"measured {spell(one.choice.key)}: {seconds(actual)}, predicted {seconds(said.value)} "
                f"({actual / said.value - 1:+.1%}, {inside} its 90 % interval)"
            )
    return lines


def draw(found: Findings) -> Figure:
    """Draw seconds and joules of every configuration, those that no other one beats in both, and what bounds each."""
    panels: list[Any] = [*([["stages"] * 2] if found.stages else []), ["front", "bounds"]]
    figure = make_sheet((11.0, 4.6 + bool(found.stages)), {"w_pad": 0.1, "h_pad": 0.08})
    by_name = figure.subplot_mosaic(panels, height_ratios=(1, 5)[-len(panels) :], width_ratios=(3, 2))
    axes = by_name["front"]
    _draw_bounds(by_name["bounds"], found)
    if found.stages:
        draw_stages(by_name["stages"], found.stages)
        by_name["stages"].set(yticks=[], ylim=(0.7, -0.3), xlabel="ms", title="preparing a batch in one process")
        by_name["stages"].grid(visible=False)
    place = found.place
    points = [(one, one.epoch_s(place, found.scatter), one.joules(place, found.scatter)) for one in found.ranked]
    for number, (one, time_s, energy) in enumerate(points, 1):
        y, low, high = (0.0, 0.0, 0.0) if energy is None else energy
        axes.plot([time_s.low, time_s.high], [y, y], color=FAINT, linewidth=1)
        axes.plot([time_s.value] * 2, [low, high], color=FAINT, linewidth=1)
        # Neighbours in rank are often neighbours here.
        marker, offset = "D" if one == found.incumbent else "o", (5, 4 if number % 2 else -11)
        axes.plot(time_s.value, y, marker, color=choose_colour(one.choice.loader), zorder=3)
        write_note(axes, str(number), (time_s.value, y), offset, coordinates="data", fontsize=8, color=INK)
    front = [
        (time_s.value, energy.value)
        for _, time_s, energy in points
        if energy is not None
        and not any(t.value < time_s.value and e is not None and e.value < energy.value for _, t, e in points)
    ]
    if front:
        axes.step(*zip(*sorted(front), strict=True), where="post", color=FAINT, zorder=1)
    bound = place.step_s * place.batches
    axes.axvline(bound, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    at, text = ("data", "axes fraction"), "training without loading"
    write_note(
        axes, text, (bound, 1), (-3, -3), coordinates=at, fontsize=8, color=MUTED, rotation=90, ha="right", va="top"
    )
    axes.margins(0.12)
    estimated = " (estimate)" * any(_is_estimate(one) for one in found.ranked)
    axes.set(xlabel="seconds an epoch", ylabel="joules an epoch" + estimated)
    axes.set_title(f"{found.subject}: predicted from probes, 90 % intervals")
    return figure


def _draw_bounds(axes: Axes, found: Findings) -> None:
    """Draw the time of a batch of every configuration as a bar, and in it what each of its needs would take alone."""
    names = [spell(one.choice.key) + " (in use)" * (one == found.incumbent) for one in found.ranked]
    rows = range(1, len(names) + 1)
    takes = [1e3 * one.batch_s(found.place) for one in found.ranked]
    axes.barh(rows, takes, 0.7, color=[choose_colour(one.choice.loader) for one in found.ranked], alpha=0.35)
    for (limit, name), marker in zip(_LIMITS.items(), "|sxo", strict=True):
        alone = [1e3 * getattr(one.bounds(found.place), limit) for one in found.ranked]
        shown = [min(ms, most) if ms else math.nan for ms, most in zip(alone, takes, strict=True)]
        axes.plot(shown, rows, marker, color=INK, markerfacecolor="none", label=name)
    axes.set_yticks(rows, [f"{row}  {name}" for row, name in zip(rows, names, strict=True)], fontsize=8)
    axes.invert_yaxis()
    axes.yaxis.tick_right()
    axes.grid(visible=False)
    axes.set(xlabel="ms a batch", title="what bounds a batch")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4, fontsize=8)
