"""report.html: the run on one page that needs nothing beside it."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.report.claims import NOT_CHECKED, Claim, group_unchecked
from harness.report.costs import make_cost_table, make_joule_table
from harness.report.distance import make_distance_table
from harness.report.figures import BrokenFigure, DrawnFigure
from harness.report.figures.style import DOMAIN_COLOURS, FAINT, GRID, INK, MUTED, SURFACE
from harness.report.labels import (
    UNKNOWN,
    joules,
    label_table,
    least_difference,
    note_model_check,
    percent,
    regime_labels,
    seconds,
    significant,
    span,
    spell,
    write_ratio,
)
from harness.report.remarks import list_caveats, list_problems, write_headline
from harness.report.summary import (
    LoaderGroup,
    Stat,
    choose_base,
    compute_joule_ratio,
    compute_ratio,
    describe_medians,
    explain_marks,
    find,
    summarise,
)
from harness.results.cells import CellResult
from harness.results.epoch_row import DOMAINS, SPREAD_LIMIT, select_settled
from harness.results.files import write_whole
from harness.results.folder import RunFolder, format_resume_command
from harness.results.provenance import Provenance
from harness.results.reader import Results
from joulefeed.table import to_html

_VERDICTS = ("pass", "warn", "fail", "unknown", "not applicable")
_THEMED = {INK: "--ink", MUTED: "--muted", FAINT: "--faint", GRID: "--grid", SURFACE: "--surface"}
"""Colours of the figures that follow the page's light or dark theme."""


def write_page(results: Results, claims: Sequence[Claim], figures: Sequence[DrawnFigure | BrokenFigure]) -> Path:
    """Write report.html into the results folder; returns its path."""
    environment = Environment(
        loader=PackageLoader("harness.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds, "joules": joules, "percent": percent}
    environment.filters |= {"significant": significant, "ratio": write_ratio, "span": span, "least": least_difference}
    groups = summarise(results)
    text = environment.get_template("report.html.j2").render(
        results=results,
        headline=write_headline(results, groups),
        valid=sum(group.valid for group in groups),
        planned=sum(group.planned for group in groups),
        workloads=[_workload(results, groups, workload) for workload in results.workloads],
        caveats=list_caveats(results, groups),
        problems=list_problems(results),
        claims=[claim for claim in claims if claim.verdict != NOT_CHECKED],
        unchecked=group_unchecked(claims),
        figures=[(figure, _inline_svg(figure) if isinstance(figure, DrawnFigure) else None) for figure in figures],
        rules=_rules(results),
        verdicts=_VERDICTS,
        cells=[_cell(results, cell) for cell in results.cells],
        provenance=[
            (name if len(results.sessions) > 1 else "", list(_provenance(content)))
            for name, content in results.sessions.items()
        ],
        commands=_commands(results),
        any_unfinished=bool(results.unfinished),
        any_estimate=any(group.estimated for group in groups),
        any_emulated=any("gpu" in row.estimated for group in groups for row in group.rows),
        any_untrusted=any(group.measured and not group.trusted for group in groups),
        domains=[domain for domain in DOMAINS if any(domain in group.domain_j for group in groups)],
        domain_colours=DOMAIN_COLOURS,
        all_domains=DOMAINS,
        spread_limit=SPREAD_LIMIT,
        compute_ratio=compute_ratio,
        compute_joule_ratio=compute_joule_ratio,
        marks=explain_marks(groups),
        medians="; ".join(filter(None, [describe_medians(groups), note_model_check(results)])),
        to_html=lambda table: Markup(to_html(table)),  # noqa: S704  it escapes its cells
        spell=spell,
    )
    path = RunFolder(results.folder).page
    write_whole(path, text.encode())
    return path


def _workload(results: Results, groups: Sequence[LoaderGroup], workload: str) -> dict[str, object]:
    here = [group for group in groups if group.workload == workload]
    labels = regime_labels(results)
    sections = []
    for regime in results.regimes:
        base = find(here, workload, regime, choose_base(results))
        there = [group for group in here if group.regime == regime]
        if there:
            rate = results.experiment.regimes[regime].rate_gbit
            detail = [f"{rate:g} Gbit/s"] if rate else []
            detail += [regime] if regime != labels[regime] else []
            sections.append((labels[regime], " · ".join(detail), base, there))
    tables = {
        "Costs beside the epochs": make_cost_table(results, groups, workload),
        "What the joules of an epoch were for": make_joule_table(results, groups, workload),
        "Epoch time by distance": make_distance_table(results, groups, workload),
    }
    return {
        "tables": {title: label_table(results, table) for title, table in tables.items() if table is not None},
        "key": workload,
        "sections": sections,
        "longest_s": max((group.time_s.median for group in here if group.time_s), default=1.0),
        "most_j": max((group.drawn_j.median for group in here if group.drawn_j), default=1.0),
        "compared": choose_base(results),
    }


def _inline_svg(figure: DrawnFigure) -> Markup:
    """Return a saved SVG fit to stand in HTML: no prologue, the drawn width as `--drawn`, the page's colours."""
    text = figure.svg.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r'\swidth="([^"]*)"', r' style="--drawn: \1"', head)
    head = re.sub(r'\sheight="[^"]*"', "", head)
    for colour, name in _THEMED.items():
        rest = rest.replace(colour, f"var({name})")
    return Markup(f'{head} role="img" aria-label="{escape(figure.title)}">{rest}')  # noqa: S704  our own file


def _rules(results: Results) -> list[tuple[str, dict[str, int]]]:
    counts: dict[str, Counter[str]] = {}
    for check in results.checks:
        verdict = check.verdict if check.verdict in _VERDICTS else "unknown"
        counts.setdefault(check.rule, Counter())[verdict] += 1
    return [(rule, {verdict: found[verdict] for verdict in _VERDICTS}) for rule, found in counts.items()]


def _cell(results: Results, cell: CellResult) -> dict[str, object]:
    rows = [row for row in results.rows if row.cell_id == cell.cell_id]
    stat = Stat.of(row.duration_s for row in select_settled(rows) or rows)
    verdicts = list(dict.fromkeys(row.valid for row in rows)) if cell.state == "done" else [cell.state]
    probes = (cell.link.before, cell.link.after)
    return {
        "id": cell.cell_id,
        "good": verdicts == ["valid"],
        "verdict": "; ".join(verdicts) or "no row",
        "reason": cell.reason,
        "time": seconds(stat.median if stat else None),
        "rtt": _before_after([probe.rtt_ms_median if probe else None for probe in probes], "ms"),
        "rate": _before_after([probe.rate_gbit if probe else None for probe in probes], "Gbit/s"),
        "mount": cell.mount or UNKNOWN,
    }


def _before_after(values: Sequence[float | None], unit: str) -> str:
    if all(value is None for value in values):
        return UNKNOWN
    return " → ".join(UNKNOWN if value is None else f"{value:.3g}" for value in values) + f" {unit}"


def _provenance(provenance: Provenance) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
    loose: list[tuple[str, str, str]] = []
    for section, fields in provenance.items():
        if not isinstance(fields, Mapping) or "value" in fields:
            loose.append((section, *_field(fields)))
        else:
            yield section, [(name, *_field(field)) for name, field in fields.items()]
    if loose:
        yield "run", loose


def _field(field: object) -> tuple[str, str]:
    value, *origin = [field.get(key) for key in ("value", "source", "how")] if isinstance(field, Mapping) else [field]
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {part if isinstance(part, str) else json.dumps(part)}" for key, part in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(str(part) for part in value)
    else:
        text = "unknown" if value is None else str(value)
    return text, ", ".join(str(part) for part in origin if part is not None)


def _commands(results: Results) -> list[tuple[str, str]]:
    """Return commands with what each does: run it again, finish it, redraw it."""
    command = next(iter(results.sessions.values()), {}).get("command", {}).get("value")
    folder, results_dir = results.folder.resolve(), results.experiment.results_dir
    resume = format_resume_command(folder, results_dir)
    commands = [("Measure again", str(command or f"python -m harness +experiment={results.experiment.name}"))]
    if results.unfinished:
        commands.append(("Run the cells that are missing", resume))
    if any(not row.is_valid for row in results.rows):
        commands.append(("Measure the cells with invalid rows again", f"{resume} resume_invalid=true"))
    redraw = shlex.join(["python", "-m", "harness.report", str(Path(results_dir) / folder.name)])
    return [*commands, ("Draw this page, the figures and the table again", redraw)]
