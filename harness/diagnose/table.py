"""A diagnosis on the terminal: the two times, the stages, the workers, the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.diagnose.advice import format_ms
from harness.diagnose.diagnosis import Diagnosis
from harness.diagnose.verdict import FED, Verdict, compute_stage_s, judge
from harness.report.labels import UNKNOWN, megabytes, percent, significant, spell
from harness.report.terminal import make_list, make_plain_table, print_whole

_BAR: Final = 10
"""Characters of a whole load."""


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the tables, then what they mean and what to change."""
    verdict = judge(diagnosis)
    for part in _parts(diagnosis, verdict):
        console.print()
        if isinstance(part, Table):
            part.caption_justify, part.caption_style = "left", "dim"
            print_whole(console, part)
        else:
            console.print(part)


def _parts(diagnosis: Diagnosis, verdict: Verdict) -> Iterator[RenderableType]:
    yield _subject(diagnosis)
    yield _times(diagnosis, verdict)
    yield _stages(diagnosis, verdict)
    yield _workers(diagnosis, verdict)
    good = verdict.limit == "accelerator"
    yield Text(verdict.headline, "bold green" if good else "bold yellow")
    yield _list(verdict.evidence, "·")
    yield Text("Change", "bold")
    yield _list(verdict.changes, "→")


def _subject(diagnosis: Diagnosis) -> Text:
    subject, machine = diagnosis.subject, diagnosis.machine
    text = Text.assemble(
        (spell(subject.workload), "bold"),
        f" from {spell(subject.loader)} on {subject.dataset}: {subject.samples} samples, {megabytes(subject.bytes)}, "
        f"in batches of {subject.batch_size}; {machine.cores} cores\n",
    )
    text.append(f"accelerator {subject.accelerator}", "yellow" if subject.emulated else "")
    if subject.emulated and subject.citation:
        text.append(f": its step lasts as long as published, and trains nothing ({subject.citation})", "dim")
    elif subject.emulated:
        text.append(": its step lasts as long as you assume, and trains nothing", "dim")
    for note in subject.notes:
        text.append(f"\n{spell(subject.loader)}: {note}", "dim")
    return text


def _times(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left"):
        grid.add_column(justify=justify)
    grid.add_row(
        Text("t_load", "bold"), format_ms(diagnosis.load_s), Text("a batch from one worker, nothing trained", "dim")
    )
    grid.add_row(Text("t_compute", "bold"), format_ms(diagnosis.compute_s), Text("a step on one cached batch", "dim"))
    ratio = significant(diagnosis.load_s / diagnosis.compute_s)
    grid.add_row(Text("ratio", "bold"), ratio, Text(f"so ⌈ratio⌉ = {verdict.expected} would hide loading", "dim"))
    return grid


def _stages(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    cold = any(stage.cold_batch_s is not None for stage in diagnosis.stages)
    heads = ("stage", "ms a batch", "share", *(("uncached",) if cold else ()), "a sample: p50", "p99")
    table = make_plain_table(*heads, left=("stage", "share"), gap=0)
    total = sum(compute_stage_s(diagnosis, stage) for stage in diagnosis.stages)
    for stage in diagnosis.stages:
        share = compute_stage_s(diagnosis, stage) / total
        style = "bold yellow" if stage is verdict.stage else ""
        bar = ("▇" * round(_BAR * share), style or "dim")
        row = [
            Text(stage.name, style),
            Text(_number(stage.batch_s), style),
            Text.assemble(f"{percent(share):>5} ", bar),
        ]
        rest = (*((stage.cold_batch_s,) if cold else ()), stage.sample_p50_s, stage.sample_p99_s)
        table.add_row(*row, *(Text(_number(value), "dim") for value in rest))
    own = diagnosis.subject.runs_pipeline
    whose = "alone in one process" if own else "of the pipeline in Python, which this engine replaces by its own"
    table.caption = f"ms of each stage, {whose}{'; uncached: with the files on storage alone' if cold else ''}"
    return table


def _workers(diagnosis: Diagnosis, verdict: Verdict) -> Table:
    cores = diagnosis.machine.cores
    heads = ("workers", "predicted", f"{cores} cores", "measured", "ms/step", "samples/s", "cores", "disk", "")
    table = make_plain_table(*heads, left=("",), gap=0)
    for point in diagnosis.points:
        marks = [name for name, at in (("knee", verdict.knee), ("⌈ratio⌉", verdict.expected)) if point.workers == at]
        table.add_row(
            str(point.workers),
            Text(percent(point.predicted), "dim"),
            Text(percent(point.predicted_on_cores), "dim"),
            Text(percent(point.utilisation), "bold green" if point.utilisation >= FED else "bold yellow"),
            _number(point.step_every_s),
            significant(diagnosis.subject.batch_size / point.step_every_s),
            f"{point.busy_cores:.1f}",
            UNKNOWN if point.disk_busy is None else percent(point.disk_busy),
            Text(" = ".join(marks), "bold"),
        )
    skipped = f"; no time was left for {', '.join(map(str, diagnosis.skipped))}" if diagnosis.skipped else ""
    table.caption = (
        f"utilisation by {diagnosis.subject.workers_key}: predicted by the textbook's model, the same where loading "
        f"and the step share {cores} cores, measured; then the cores and the disk that were busy{skipped}"
    )
    return table


def _list(lines: tuple[str, ...], mark: str) -> Padding:
    return Padding(make_list(((Text(mark, "dim"), Text(line)) for line in lines), gap=1), (0, 0, 0, 2))


def _number(seconds: float | None) -> str:
    """Write a time in ms without its unit, which the column has."""
    return UNKNOWN if seconds is None else significant(seconds * 1e3)
