"""A diagnosis in the terminal: the two times, the stages, the workers, the verdict."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from harness.diagnose.diagnosis import Diagnosis
from harness.diagnose.verdict import FED, Verdict, format_ms
from harness.report.labels import UNKNOWN, megabytes, percent, significant, spell
from joulefeed.table import Table, TableCell, TableColumn, print_table

_BAR: Final = 10
"""Characters of a whole load."""


def print_diagnosis(diagnosis: Diagnosis, verdict: Verdict, console: Console) -> None:
    """Print the tables, then what they mean and what to change."""
    console.print()
    console.print(_describe_subject(diagnosis))
    for table in (_make_times(diagnosis, verdict), _make_stages(diagnosis, verdict), _make_workers(diagnosis, verdict)):
        console.print()
        print_table(table, console)
    console.print()
    console.print(Text(verdict.headline, "bold green" if verdict.limit == "accelerator" else "bold yellow"))
    for heading, mark, lines in (("", "·", verdict.evidence), ("Change", "→", verdict.changes)):
        console.print()
        if heading:
            console.print(Text(f"{heading}\n", "bold"))
        columns = [TableColumn("", left=True), TableColumn("", left=True, wraps=True)]
        print_table(Table(columns, [[f"  {mark}", line] for line in lines]), console)


def _describe_subject(diagnosis: Diagnosis) -> Text:
    subject, machine = diagnosis.subject, diagnosis.machine
    text = Text.assemble(
        (spell(subject.workload), "bold"),
        f" from {spell(subject.loader)} on {subject.dataset}: {subject.samples} samples, {megabytes(subject.bytes)}, "
        f"in batches of {subject.batch_size}; {machine.cores} cores\n",
    )
    text.append(f"accelerator {subject.accelerator}", "yellow" if subject.emulated else "")
    if subject.emulated:
        length = f"as published, and trains nothing ({subject.citation})"
        length = length if subject.citation else "as you assume, and trains nothing"
        text.append(f": its step lasts as long {length}", "dim")
    for note in subject.notes:
        text.append(f"\n{spell(subject.loader)}: {note}", "dim")
    return text


def _make_times(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    ratio = significant(diagnosis.load_s / diagnosis.compute_s)
    rows = (
        ("t_load", format_ms(diagnosis.load_s), "a batch from one worker, nothing trained"),
        ("t_compute", format_ms(diagnosis.compute_s), "a step on one cached batch"),
        ("ratio", ratio, f"so ⌈ratio⌉ = {verdict.expected} would hide loading"),
    )
    columns = [TableColumn("", left=True), TableColumn(""), TableColumn("", left=True, wraps=True)]
    return Table(
        columns, [[TableCell(name, "strong"), value, TableCell(meaning, "dim")] for name, value, meaning in rows]
    )


def _make_stages(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    total = sum(stage.batch_s for stage in diagnosis.stages)
    rows: list[list[TableCell | str]] = []
    for stage in diagnosis.stages:
        share = stage.batch_s / total
        named = TableCell(stage.name, "warn") if stage is verdict.stage else stage.name
        bar = f"{percent(share):>5} {'▇' * round(_BAR * share)}"
        spread = (stage.sample_p50_s, stage.sample_p99_s)
        rows.append(
            [named, _format_number(stage.batch_s), bar, *(TableCell(_format_number(one), "dim") for one in spread)]
        )
    numbers = (
        TableColumn("ms a batch"),
        TableColumn("share", left=True),
        TableColumn("p50 a sample"),
        TableColumn("p99"),
    )
    is_own = diagnosis.subject.runs_pipeline
    whose = "alone in one process" if is_own else "of the pipeline in Python, which this engine replaces by its own"
    return Table([TableColumn("stage", left=True), *numbers], rows, [f"ms of each stage, {whose}"])


def _make_workers(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    rows: list[list[TableCell | str]] = []
    for point in diagnosis.points:
        marks = [name for name, at in (("knee", verdict.knee), ("⌈ratio⌉", verdict.expected)) if point.workers == at]
        rows.append(
            [
                str(point.workers),
                TableCell(percent(point.predicted), "dim"),
                TableCell(percent(point.utilisation), "good" if point.utilisation >= FED else "warn"),
                _format_number(point.step_every_s),
                significant(diagnosis.subject.batch_size / point.step_every_s),
                f"{point.busy_cores:.1f}",
                UNKNOWN if point.disk_busy is None else percent(point.disk_busy),
                TableCell(" = ".join(marks), "strong"),
            ]
        )
    names = ("workers", "predicted", "measured", "ms/step", "samples/s", "cores", "disk")
    note = f"utilisation by {diagnosis.subject.workers_key}: predicted by the textbook's model, and measured"
    notes = [note, "then the cores and the disk that were busy"]
    if diagnosis.skipped:
        notes.append(f"no time was left for {', '.join(map(str, diagnosis.skipped))}")
    return Table([*map(TableColumn, names), TableColumn("", left=True)], rows, notes)


def _format_number(seconds: float | None) -> str:
    """Write a time in ms without its unit, which the column has."""
    return UNKNOWN if seconds is None else significant(seconds * 1e3)
